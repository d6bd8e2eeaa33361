/** A value as an expandable tree; long lists and strings are shown in parts. */
import { useState } from "preact/hooks";

const PIECE = 100;
const LONG_TEXT = 400;

export function JsonTree({ value, name, open = 1 }: { value: unknown; name?: string; open?: number }) {
  return (
    <div class="json">
      <Value value={value} name={name} open={open} />
    </div>
  );
}

function Value({ value, name, open }: { value: unknown; name?: string; open: number }) {
  const label = name === undefined ? null : <span class="j-key">{name}: </span>;
  if (value !== null && typeof value === "object") return <Branch value={value as object} name={name} open={open} />;
  return (
    <div class="j-leaf">
      {label}
      {isHidden(name, value) ? <Hidden /> : <Leaf value={value} />}
    </div>
  );
}

/** Names of values that are secret by convention; the same as in `core/model/secret_names.py`. */
const SECRET = /passw(or)?d|secret|token|api_?key|private_?key|credential|authorization/i;

const isHidden = (name: string | undefined, value: unknown) => name !== undefined && typeof value === "string" && value !== "" && SECRET.test(name);

const Hidden = () => (
  <span class="j-null" title="Hidden because of its name">
    ***
  </span>
);

function Leaf({ value }: { value: unknown }) {
  const [whole, setWhole] = useState(false);
  if (typeof value === "string") {
    const cut = !whole && value.length > LONG_TEXT;
    return (
      <span class="j-text">
        "{cut ? value.slice(0, LONG_TEXT) : value}"
        {cut && (
          <button type="button" class="link" onClick={() => setWhole(true)}>
            … {(value.length - LONG_TEXT).toLocaleString()} more
          </button>
        )}
      </span>
    );
  }
  return <span class={value === null || value === undefined ? "j-null" : typeof value === "boolean" ? "j-bool" : "j-number"}>{String(value)}</span>;
}

function Branch({ value, name, open }: { value: object; name?: string; open: number }) {
  const [shown, setShown] = useState(open > 0);
  const [most, setMost] = useState(PIECE);
  const list = Array.isArray(value);
  const keys = list ? null : Object.keys(value);
  const size = list ? (value as unknown[]).length : keys!.length;
  const brackets = list ? ["[", "]"] : ["{", "}"];
  const entries: [string, unknown][] = [];
  if (shown) {
    for (let at = 0; at < Math.min(size, most); at++) {
      const key = list ? String(at) : keys![at];
      entries.push([key, (value as any)[key]]);
    }
  }
  return (
    <div class="j-branch">
      <button type="button" class="j-head" aria-expanded={shown} disabled={!size} onClick={() => setShown(!shown)}>
        <span class="j-arrow" aria-hidden="true">
          {size ? (shown ? "▾" : "▸") : ""}
        </span>
        {name !== undefined && <span class="j-key">{name}: </span>}
        <span class="j-size">{size === 0 ? brackets.join("") : list ? `[ ${size.toLocaleString()} ]` : shown ? "{" : `{ ${preview(keys!)} }`}</span>
      </button>
      {shown && size > 0 && (
        <div class="j-inner">
          {entries.map(([key, each]) => (
            <Value key={key} value={each} name={key} open={open - 1} />
          ))}
          {size > most && (
            <button type="button" class="link" onClick={() => setMost(most + 10 * PIECE)}>
              {(size - most).toLocaleString()} more
            </button>
          )}
        </div>
      )}
    </div>
  );
}

const preview = (keys: string[]) => (keys.length > 4 ? `${keys.slice(0, 4).join(", ")}, …` : keys.join(", "));

/** The columns of a list of similar mappings; null if it is not a table. */
export function columnsOf(value: unknown): string[] | null {
  if (!Array.isArray(value) || !value.length) return null;
  const columns = new Set<string>();
  for (const row of value.slice(0, 50)) {
    if (row === null || typeof row !== "object" || Array.isArray(row)) return null;
    Object.keys(row).forEach((key) => columns.add(key));
  }
  return columns.size && columns.size <= 60 ? [...columns] : null;
}

/** Rows as a table; structured cells are expandable trees. */
export function DataTable({ rows, columns, from = 0, sorting = null, onSort }: { rows: Record<string, unknown>[]; columns: string[]; from?: number; sorting?: Sorting | null; onSort?: (column: string) => void }) {
  return (
    <div class="data-table" tabIndex={0} role="region" aria-label="Rows">
      <table>
        <thead>
          <tr>
            <th class="number">#</th>
            {columns.map((name) => (
              <th key={name} class={typeof rows[0]?.[name] === "number" ? "right" : ""} aria-sort={sorting?.column === name ? (sorting.down ? "descending" : "ascending") : undefined}>
                {onSort ? (
                  <button type="button" class="link" onClick={() => onSort(name)}>
                    {name}
                    {sorting?.column === name ? (sorting.down ? " ▾" : " ▴") : ""}
                  </button>
                ) : (
                  name
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, at) => (
            <tr key={at}>
              <td class="number quiet">{(from + at).toLocaleString()}</td>
              {columns.map((name) => (
                <td key={name} class={typeof row[name] === "number" ? "number right" : ""}>
                  {isHidden(name, row[name]) ? <Hidden /> : <Cell value={row[name]} />}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Cell({ value }: { value: unknown }) {
  if (value === null || value === undefined) return <span class="j-null">null</span>;
  if (typeof value === "object") return <JsonTree value={value} open={0} />;
  const text = String(value);
  return text.length > 120 ? <span title={text}>{text.slice(0, 119)}…</span> : <>{text}</>;
}

export interface Sorting {
  column: string;
  down: boolean;
}

/** Rows sorted by a column; rows without a value are last. */
export function sortedRows(rows: Record<string, unknown>[], sorting: Sorting | null): Record<string, unknown>[] {
  if (!sorting) return rows;
  const { column, down } = sorting;
  const key = (row: Record<string, unknown>) => {
    const value = row[column];
    return typeof value === "object" && value !== null ? JSON.stringify(value) : (value as string | number | boolean | null | undefined);
  };
  return [...rows].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === y) return 0;
    if (x === null || x === undefined) return 1;
    if (y === null || y === undefined) return -1;
    return (x < y ? -1 : 1) * (down ? -1 : 1);
  });
}

/** Rows as CSV (RFC 4180). */
export function csvOf(rows: Record<string, unknown>[], columns: string[]): string {
  const cell = (value: unknown) => {
    const text = value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  return [columns.map(cell).join(","), ...rows.map((row) => columns.map((name) => cell(row[name])).join(","))].join("\r\n") + "\r\n";
}

/** What a column contains: count, missing, distinct, least, most, mean. */
export function profileOf(rows: Record<string, unknown>[], column: string) {
  const values = rows.map((row) => row[column]);
  const present = values.filter((value) => value !== null && value !== undefined);
  const numbers = present.filter((value): value is number => typeof value === "number");
  const distinct = new Set(present.map((value) => (typeof value === "object" ? JSON.stringify(value) : value))).size;
  const least = numbers.reduce((a, b) => Math.min(a, b), Infinity);
  const most = numbers.reduce((a, b) => Math.max(a, b), -Infinity);
  const mean = numbers.reduce((sum, value) => sum + value, 0) / numbers.length;
  return { count: values.length, missing: values.length - present.length, distinct, ...(numbers.length ? { least, most, mean: Math.round(mean * 1000) / 1000 } : {}) };
}
