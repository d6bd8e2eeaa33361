/** Profiles of columns and simple charts of rows. */
import { useState } from "preact/hooks";

export interface ColumnProfile {
  name: string;
  type?: string;
  missing: number;
  distinct: number;
  least?: string | number | null;
  most?: string | number | null;
  mean?: number | null;
  histogram?: { from?: number; to?: number; counts: number[] };
  top?: { value: string; count: number }[];
}

const said = (value: string | number | null | undefined) => (value === null || value === undefined ? "" : typeof value === "number" ? (Math.round(value * 1000) / 1000).toLocaleString() : value.length > 40 ? `${value.slice(0, 39)}…` : value);

export function Profile({ columns }: { columns: ColumnProfile[] }) {
  return (
    <div class="scroll-x" tabIndex={0} role="group" aria-label="Profile">
      <table class="small-table" aria-label="Profile of the columns">
        <thead>
          <tr>
            {["Column", "Type", "Missing", "Distinct", "Least", "Most", "Mean", "Values"].map((each) => (
              <th key={each}>{each}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {columns.map((each) => (
            <tr key={each.name}>
              <td class="mono">{each.name}</td>
              <td class="quiet">{(each.type ?? "").toLowerCase()}</td>
              <td class="number">{each.missing.toLocaleString()}</td>
              <td class="number">{each.distinct.toLocaleString()}</td>
              <td class="number">{said(each.least)}</td>
              <td class="number">{said(each.most)}</td>
              <td class="number">{said(each.mean)}</td>
              <td>
                {each.histogram && <Spread counts={each.histogram.counts} label={`Distribution of ${each.name}`} />}
                {each.top && each.top.length > 0 && (
                  <span class="top-values" title={each.top.map(({ value, count }) => `${value}: ${count}`).join("\n")}>
                    {each.top.slice(0, 3).map(({ value, count }) => (
                      <span key={value}>
                        {said(value)} <b class="number">{count.toLocaleString()}</b>
                      </span>
                    ))}
                  </span>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Spread({ counts, label }: { counts: number[]; label: string }) {
  const most = Math.max(1, ...counts);
  return (
    <span class="spread" role="img" aria-label={label}>
      {counts.map((count, at) => (
        <u key={at} style={{ height: `${count ? Math.max(6, (100 * count) / most) : 0}%` }} title={count.toLocaleString()} />
      ))}
    </span>
  );
}

const MOST_BARS = 40;
const isNumber = (type: string) => /INT|DOUBLE|FLOAT|DECIMAL|NUMERIC|number/i.test(type);

/** The shown rows as bars: one column is the label, one the value. */
export function RowChart({ rows, columns }: { rows: Record<string, unknown>[]; columns: { name: string; type: string }[] }) {
  const numbers = columns.filter((each) => isNumber(each.type)).map((each) => each.name);
  const [label, setLabel] = useState(columns.find((each) => !isNumber(each.type))?.name ?? columns[0]?.name ?? "");
  const [value, setValue] = useState(numbers.find((each) => each !== label) ?? numbers[0] ?? "");
  if (!numbers.length) return <p class="quiet">No column has numbers. A query can count: SELECT name, count(*) AS n FROM result GROUP BY name.</p>;
  const shown = rows.slice(0, MOST_BARS);
  const values = shown.map((row) => Number(row[value] ?? 0));
  const low = Math.min(0, ...values);
  const high = Math.max(0, ...values);
  const span = high - low || 1;
  return (
    <div class="row-chart">
      <div class="row">
        {(
          [
            ["Label", label, setLabel, columns.map((each) => each.name)],
            ["Value", value, setValue, numbers],
          ] as [string, string, (name: string) => void, string[]][]
        ).map(([words, now, set, names]) => (
          <label key={words} class="check">
            {words}
            <select value={now} onChange={(event) => set(event.currentTarget.value)}>
              {names.map((each) => (
                <option key={each} value={each}>
                  {each}
                </option>
              ))}
            </select>
          </label>
        ))}
        <span class="quiet">
          the first {shown.length} shown {shown.length === 1 ? "row" : "rows"}
        </span>
      </div>
      <ol class="plain" aria-label={`${value} by ${label}`}>
        {shown.map((row, at) => (
          <li key={at}>
            <span class="bar-label">{said(row[label] as string)}</span>
            <span class="bar-track">
              <u class={values[at] < 0 ? "below" : ""} style={{ marginLeft: `${(100 * (Math.min(0, values[at]) - low)) / span}%`, width: `${(100 * Math.abs(values[at])) / span}%` }} />
            </span>
            <span class="number">{said(values[at])}</span>
          </li>
        ))}
      </ol>
    </div>
  );
}
