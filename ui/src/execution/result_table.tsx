/** A stored result as a table: sorted, filtered and paged by the server; profile, charts, SQL, export. */
import { useEffect, useState } from "preact/hooks";
import { address, api, Problem } from "../common/api";
import { Button, ErrorState, Loading } from "../common/components";
import { DataTable, type Sorting } from "./json";
import { Profile, type ColumnProfile, RowChart } from "./result_charts";

const ROWS = 100;

interface TablePage {
  columns: { name: string; type: string }[];
  rows: Record<string, unknown>[];
  total: number;
}

type Shown = "rows" | "profile" | "chart";

/** `onNone` is called if the result is no table, or too large for one. */
export function ResultTable({ name, onNone }: { name: string; onNone: () => void }) {
  const [from, setFrom] = useState(0);
  const [sorting, setSorting] = useState<Sorting | null>(null);
  const [text, setText] = useState("");
  const [filter, setFilter] = useState("");
  const [sql, setSql] = useState("");
  const [draft, setDraft] = useState("SELECT * FROM result LIMIT 100");
  const [asking, setAsking] = useState(false);
  const [shown, setShown] = useState<Shown>("rows");
  const [page, setPage] = useState<TablePage | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const view = { sort: sorting?.column, order: sorting?.down ? "desc" : "asc" };
  const source = sql ? { sql } : { filter };

  useEffect(() => {
    const timer = setTimeout(() => {
      if (text.trim() === filter) return;
      setFilter(text.trim());
      setFrom(0);
    }, 250);
    return () => clearTimeout(timer);
  }, [text]);
  useEffect(() => {
    const leaving = new AbortController();
    const sort = sorting ? [{ column: sorting.column, descending: sorting.down }] : [];
    api.post<TablePage>(`/api/results/${name}/query`, { ...source, sort, limit: ROWS, offset: from, count: true }).then(
      (found) => {
        if (leaving.signal.aborted) return;
        setPage(found);
        setProblem(null);
      },
      (error) => {
        if (leaving.signal.aborted) return;
        if (error.status === 400 && !page && !sql && !filter) onNone();
        else setProblem(error);
      },
    );
    return () => leaving.abort();
  }, [name, from, sorting, filter, sql]);

  const ask = (statement: string) => {
    setSql(statement.trim());
    setSorting(null);
    setFrom(0);
  };
  if (!page) return problem ? <ErrorState problem={problem} /> : <Loading what="Loading table" />;
  const exported = (format: string) => address(`/api/results/${name}/export`, { ...source, ...view, format });
  return (
    <div class="result-table">
      <div class="row">
        <input type="search" placeholder="Filter rows" aria-label="Filter rows" value={text} disabled={!!sql} onInput={(event) => setText(event.currentTarget.value)} />
        <span class="quiet number" role="status">
          {page.total.toLocaleString()} {page.total === 1 ? "row" : "rows"}
        </span>
        <span class="grow" />
        {(["rows", "profile", "chart"] as Shown[]).map((each) => (
          <Button key={each} class="small" aria-pressed={shown === each} onClick={() => setShown(each)}>
            {each[0].toUpperCase() + each.slice(1)}
          </Button>
        ))}
        <Button class="small" aria-pressed={asking} aria-expanded={asking} onClick={() => (setAsking(!asking), asking && ask(""))}>
          SQL
        </Button>
        <a class="button small" href={exported("csv")} download>
          CSV
        </a>
        <a class="button small" href={exported("parquet")} download>
          Parquet
        </a>
      </div>
      {asking && (
        <form
          class="sql"
          onSubmit={(event) => {
            event.preventDefault();
            ask(draft);
          }}
        >
          <textarea
            aria-label="SQL query over the table result"
            rows={Math.min(10, Math.max(2, draft.split("\n").length))}
            spellcheck={false}
            value={draft}
            onInput={(event) => setDraft(event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
              event.preventDefault();
              ask(draft);
            }}
          />
          <div class="row">
            <span class="quiet grow">
              One SELECT (DuckDB) over the table <code>result</code>. Ctrl+Enter runs it.
            </span>
            {sql && (
              <Button class="small" onClick={() => ask("")}>
                Show all rows
              </Button>
            )}
            <Button class="small" kind="primary" type="submit">
              Run query
            </Button>
          </div>
        </form>
      )}
      {problem && (
        <p class="wrong" role="alert">
          {problem.message}
        </p>
      )}
      {shown === "profile" && <Profiled name={name} source={source} />}
      {shown === "chart" && <RowChart rows={page.rows} columns={page.columns} />}
      {shown === "rows" && (
        <>
          <DataTable
            rows={page.rows}
            columns={page.columns.map((each) => each.name)}
            from={from}
            sorting={sorting}
            onSort={(column) => {
              setFrom(0);
              setSorting((now) => (now?.column !== column ? { column, down: false } : now.down ? null : { column, down: true }));
            }}
          />
          {page.total > ROWS && (
            <div class="row">
              <Button class="small" disabled={!from} onClick={() => setFrom(Math.max(0, from - ROWS))}>
                ← Previous
              </Button>
              <span class="quiet number">
                {(from + 1).toLocaleString()} – {Math.min(page.total, from + ROWS).toLocaleString()} of {page.total.toLocaleString()}
              </span>
              <Button class="small" disabled={from + ROWS >= page.total} onClick={() => setFrom(from + ROWS)}>
                Next →
              </Button>
            </div>
          )}
        </>
      )}
    </div>
  );
}

function Profiled({ name, source }: { name: string; source: { sql?: string; filter?: string } }) {
  const [columns, setColumns] = useState<ColumnProfile[] | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  useEffect(() => {
    const leaving = new AbortController();
    api.get<{ columns: ColumnProfile[] }>(`/api/results/${name}/profile`, source, leaving.signal).then(
      (found) => setColumns(found.columns),
      (error) => leaving.signal.aborted || setProblem(error),
    );
    return () => leaving.abort();
  }, [name, source.sql, source.filter]);
  if (problem) return <ErrorState problem={problem} />;
  return columns ? <Profile columns={columns} /> : <Loading what="Loading profile" />;
}
