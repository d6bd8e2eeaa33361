/** The results browser: outputs of steps as tree or table; stored results are loaded in ranges. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { api, address } from "../common/api";
import { Button, EmptyState, ErrorState, Loading, Status } from "../common/components";
import type { Snapshot, Output, Reference, StateDocument } from "./snapshot";
import { ResultTable } from "./result_table";
import { Profile, RowChart } from "./result_charts";
import { columnsOf, csvOf, DataTable, JsonTree, profileOf, sortedRows, type Sorting } from "./json";

const ROWS = 100;

interface Props {
  requested: Snapshot<StateDocument>;
  step: string | null;
  onSelect: (step: string | null) => void;
}

export function Results({ requested, step, onSelect }: Props) {
  const { value: state, problem, stale } = requested;
  if (problem && !state) return <ErrorState problem={problem} />;
  if (!state) return <Loading what="Loading state" />;
  const outputs = Object.entries(state.steps).filter(([, each]) => each.output);
  if (!outputs.length) {
    return (
      <EmptyState title="No results yet">
        <p>The output of a step is shown when the step has ended.</p>
      </EmptyState>
    );
  }
  const own = state.output && !step;
  const chosen = step && state.steps[step]?.output ? step : null;
  const output = chosen ? state.steps[chosen].output! : own ? state.output! : outputs[outputs.length - 1][1].output!;
  const name = chosen ?? (own ? "the execution" : outputs[outputs.length - 1][0]);
  return (
    <div class={`results ${stale ? "stale" : ""}`}>
      <nav class="result-list" aria-label="Steps with results">
        {state.output && (
          <button type="button" aria-current={own && !chosen ? "true" : undefined} onClick={() => onSelect(null)}>
            <strong>Output</strong>
          </button>
        )}
        {outputs.map(([each, { status, output: its }]) => (
          <button key={each} type="button" aria-current={name === each ? "true" : undefined} onClick={() => onSelect(each)}>
            <span>{each}</span>
            <span class="quiet">{its!.ref ? size(its!.ref.meta.bytes) : status === "failed" ? "failed" : kind(its!.data)}</span>
          </button>
        ))}
      </nav>
      <div class="result">
        <div class="row">
          <h2>{name}</h2>
          <Status status={output.status === "ok" ? "success" : "failed"} />
        </div>
        <OutputView key={name} output={output} />
      </div>
    </div>
  );
}

export function OutputView({ output, quietly = false }: { output: Output; quietly?: boolean }) {
  const { status: _, data, ref, error, meta, ...rest } = output;
  const helpers = Object.fromEntries(Object.entries(meta === undefined ? rest : { ...rest, meta }).filter(([, value]) => hasValue(value)));
  return (
    <>
      {error && (
        <div class="error-box">
          <strong>{error.kind}</strong>
          <p>{error.message}</p>
        </div>
      )}
      {ref ? <Stored reference={ref} /> : data === null || data === undefined ? !error && (!quietly || !Object.keys(helpers).length) && <p class="quiet">{quietly ? "None." : "No output."}</p> : <Value value={data} />}
      {Object.keys(helpers).length > 0 && <JsonTree value={helpers} name="details" open={quietly ? 2 : 0} />}
    </>
  );
}

const hasValue = (value: unknown): boolean => value !== null && value !== undefined && (typeof value !== "object" || Object.values(value).some((each) => each !== null && each !== undefined));

/** A value as a table where it is one (or has `rows`), else as a tree. */
export function Value({ value }: { value: unknown }) {
  const [tree, setTree] = useState(false);
  const rows = (value as any)?.rows ?? value;
  const columns = columnsOf(rows);
  if (!columns) return <JsonTree value={value} open={2} />;
  return (
    <>
      <Choice tree={tree} setTree={setTree} words={`${rows.length.toLocaleString()} rows, ${columns.length} columns`} />
      {tree ? <JsonTree value={value} open={2} /> : <Pieces rows={rows} columns={columns} />}
    </>
  );
}

function Choice({ tree, setTree, words }: { tree: boolean; setTree: (tree: boolean) => void; words: string }) {
  return (
    <div class="row">
      <span class="quiet number">{words}</span>
      <Button class="small" aria-pressed={!tree} onClick={() => setTree(false)}>
        Table
      </Button>
      <Button class="small" aria-pressed={tree} onClick={() => setTree(true)}>
        Tree
      </Button>
    </div>
  );
}

function Pieces({ rows: all, columns }: { rows: Record<string, unknown>[]; columns: string[] }) {
  const [from, setFrom] = useState(0);
  const [sorting, setSorting] = useState<Sorting | null>(null);
  const [text, setText] = useState("");
  const [profile, setProfile] = useState(false);
  const [chart, setChart] = useState(false);
  const wanted = text.trim().toLowerCase();
  const rows = useMemo(() => sortedRows(wanted ? all.filter((row) => columns.some((name) => String(typeof row[name] === "object" ? JSON.stringify(row[name]) : row[name]).toLowerCase().includes(wanted))) : all, sorting), [all, sorting, wanted]);
  const onSort = (column: string) => setSorting((now) => (now?.column !== column ? { column, down: false } : now.down ? null : { column, down: true }));
  const save = () => {
    const url = URL.createObjectURL(new Blob([csvOf(rows, columns)], { type: "text/csv" }));
    const link = Object.assign(document.createElement("a"), { href: url, download: "result.csv" });
    link.click();
    URL.revokeObjectURL(url);
  };
  return (
    <>
      <div class="row">
        <input type="search" placeholder="Filter rows" aria-label="Filter rows" value={text} onInput={(event) => (setText(event.currentTarget.value), setFrom(0))} />
        <span class="quiet number" role="status">
          {rows.length.toLocaleString()} rows
        </span>
        <Button class="small" aria-pressed={profile} onClick={() => setProfile(!profile)}>
          Profile
        </Button>
        <Button class="small" aria-pressed={chart} onClick={() => setChart(!chart)}>
          Chart
        </Button>
        <Button class="small" onClick={save}>
          CSV
        </Button>
      </div>
      {profile && <Profile columns={columns.map((name) => ({ name, ...profileOf(rows, name) }))} />}
      {chart && <RowChart rows={rows} columns={columns.map((name) => ({ name, type: typeof rows.find((row) => row[name] !== null && row[name] !== undefined)?.[name] }))} />}
      <DataTable rows={rows.slice(from, from + ROWS)} columns={columns} from={from} sorting={sorting} onSort={onSort} />
      {rows.length > ROWS && <Pager from={from} step={ROWS} more={from + ROWS < rows.length} go={setFrom} total={rows.length} />}
    </>
  );
}

function Pager({ from, step, more, go, total }: { from: number; step: number; more: boolean; go: (from: number) => void; total?: number }) {
  return (
    <div class="row">
      <Button class="small" disabled={!from} onClick={() => go(Math.max(0, from - step))}>
        ← Previous
      </Button>
      <span class="quiet number">
        {from.toLocaleString()} – {(from + step - 1).toLocaleString()}
        {total !== undefined ? ` of ${total.toLocaleString()}` : ""}
      </span>
      <Button class="small" disabled={!more} onClick={() => go(from + step)}>
        Next →
      </Button>
    </div>
  );
}

/** A stored JSON value, such as the input of a task, as a tree. */
export function StoredValue({ reference }: { reference: Reference }) {
  const [value, setValue] = useState<{ data: unknown } | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const name = encoded(reference);
  useEffect(() => {
    const leaving = new AbortController();
    fetchWhole(name, leaving.signal)
      .then(setValue)
      .catch((error) => leaving.signal.aborted || setProblem(error));
    return () => leaving.abort();
  }, [name]);
  if (problem) return <ErrorState problem={problem} />;
  return value ? <JsonTree value={value.data} open={2} /> : <Loading what="Loading stored value" />;
}

const TABLES = /json|csv|parquet|arrow/;

/** A payload in the result store: a table where it is one, else shown in ranges; with a download of the whole. */
function Stored({ reference }: { reference: Reference }) {
  const [plain, setPlain] = useState(!TABLES.test(reference.meta.content_type));
  const { bytes, rows, content_type } = reference.meta;
  const name = encoded(reference);
  return (
    <>
      <div class="row">
        <span class="quiet">
          stored in the result store · {content_type} · {size(bytes)}
          {rows !== undefined && rows !== null ? ` · ${rows.toLocaleString()} rows` : ""}
        </span>
        <a class="button small" href={address(`/api/results/${name}`)} download>
          Download
        </a>
      </div>
      {plain ? <Ranges reference={reference} /> : <ResultTable key={name} name={name} onNone={() => setPlain(true)} />}
    </>
  );
}

function Ranges({ reference }: { reference: Reference }) {
  const [from, setFrom] = useState(0);
  const [part, setPart] = useState<{ format: string; data: any } | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const name = encoded(reference);
  const { bytes, rows } = reference.meta;
  const load = (signal: AbortSignal) =>
    api.get<{ format: string; data: any }>(`/api/results/${name}/part`, { offset: from, limit: ROWS }, signal).catch((error) => {
      // A single object has no ranges: a small one is loaded completely.
      if (from === 0 && bytes <= 4 * 2 ** 20 && error.status === 404) return fetchWhole(name, signal);
      throw error;
    });
  useEffect(() => {
    const leaving = new AbortController();
    setProblem(null);
    load(leaving.signal)
      .then(setPart)
      .catch((error) => leaving.signal.aborted || setProblem(error));
    return () => leaving.abort();
  }, [name, from]);
  const data = part?.data?.rows ?? part?.data;
  const columns = columnsOf(data);
  const total = rows ?? undefined;
  const full = Array.isArray(data) && data.length === ROWS;
  return (
    <>
      {problem ? (
        <ErrorState problem={problem} />
      ) : !part ? (
        <Loading what="Loading part" />
      ) : columns ? (
        <DataTable rows={data} columns={columns} from={from} />
      ) : typeof data === "string" ? (
        <pre class="text">{data}</pre>
      ) : (
        <JsonTree value={data} open={2} />
      )}
      {(from > 0 || full) && <Pager from={from} step={ROWS} more={total !== undefined ? from + ROWS < total : full} go={setFrom} total={total} />}
    </>
  );
}

async function fetchWhole(name: string, signal: AbortSignal) {
  return { format: "json", data: await api.get<unknown>(`/api/results/${name}`, {}, signal) };
}

/** The reference for the URL: JSON in URL-safe base64. */
export function encoded(reference: Reference): string {
  const bytes = new TextEncoder().encode(JSON.stringify(reference));
  let text = "";
  bytes.forEach((byte) => (text += String.fromCharCode(byte)));
  return btoa(text).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

export function size(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 2 ** 20) return `${(bytes / 1024).toFixed(1)} KiB`;
  if (bytes < 2 ** 30) return `${(bytes / 2 ** 20).toFixed(1)} MiB`;
  return `${(bytes / 2 ** 30).toFixed(2)} GiB`;
}

const kind = (data: unknown) =>
  Array.isArray(data) ? `${data.length} items` : data === null || data === undefined ? "none" : typeof data === "object" ? `${Object.keys(data).length} keys` : typeof data;
