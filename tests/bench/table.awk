# SPDX-License-Identifier: Apache-2.0
#
# run's table and results.json from its samples ("row measured limit" a line). Input: run's list of rows.
function median(values, count,    i, j, x) {
        for (i = 2; i <= count; i++) {
                x = values[i]
                for (j = i - 1; j > 0 && values[j] > x; j--)
                        values[j + 1] = values[j]
                values[j + 1] = x
        }
        return count % 2 ? values[(count + 1) / 2] : (values[count / 2] + values[count / 2 + 1]) / 2
}
function escaped(text) {
        gsub(/["\\]/, "\\\\&", text)
        return text
}
BEGIN {
        while ((getline line < samples) > 0) {
                split(line, part, " ")
                n = ++count[part[1]]
                measured[part[1], n] = part[2]
                limit[part[1], n] = part[3]
        }
        printf "{\n  \"machine\": {" > results
        while ((getline line < facts) > 0) {
                at = index(line, "=")
                key = substr(line, 1, at - 1)
                text = substr(line, at + 1)
                printf "%s\n    \"%s\": \"%s\"", comma, key, escaped(text) > results
                printf "%s%s: %s", shown++ % 3 ? "; " : (shown > 1 ? "\n" : ""), key, text
                comma = ","
        }
        printf "\n  },\n  \"rows\": [" > results
        comma = ""
        printf "\n\n%-48s %10s %10s %7s  %-17s %8s\n", "median of each round's ratio", "measured", "limit", "ratio",
                "lowest..highest", "target"
}
{
        id = $1
        n = count[id]
        if (n == 0) {
                if ($8 == "" || ($8 == "fio" && has_fio) || ($8 == "torch" && has_torch))
                        next
                printf "%-48s %s is not installed\n", $2, $8
                printf "%s\n    {\"id\": \"%s\", \"name\": \"%s\", \"skipped\": \"%s is not installed\"}", comma, id,
                        escaped($2), $8 > results
                comma = ","
                next
        }
        for (i = 1; i <= n; i++) {
                m[i] = measured[id, i]
                l[i] = limit[id, i]
                r[i] = $5 == "of" ? m[i] / l[i] : l[i] / m[i]
        }
        middle_m = median(m, n)
        middle_l = median(l, n)
        ratio = median(r, n) # r is sorted now
        met = $6 == "ge" ? ratio >= $7 : ratio <= $7
        missed += !met
        printf "%-48s %5.3g %-4s %5.3g %-4s %7.3f  %-17s %s %-5s %s\n", $2, middle_m * $4, $3, middle_l * $4, $3,
                ratio, sprintf("%.3f..%.3f", r[1], r[n]), $6 == "ge" ? "≥" : "≤", $7, met ? "✓" : "✗"
        printf "%s\n    {\"id\": \"%s\", \"name\": \"%s\", \"unit\": \"%s\", \"measured\": %.6g, \"limit\": %.6g, " \
                "\"ratio\": %.4f, \"ratio_min\": %.4f, \"ratio_max\": %.4f, \"at_%s\": %s, \"met\": %s, " \
                "\"rounds\": %d}", comma, id, escaped($2), $3, middle_m * $4, middle_l * $4, ratio, r[1], r[n],
                $6 == "ge" ? "least" : "most", $7, met ? "true" : "false", n > results
        comma = ","
}
END {
        printf "\n  ]\n}\n" > results
        printf "\n%d %s missed; the same as JSON: %s\n", missed, missed == 1 ? "target is" : "targets are", results
}
