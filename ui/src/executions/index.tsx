/** The list of executions: live updates, filters in the URL, bulk actions. */
import { useEffect, useRef, useState } from "preact/hooks";
import { api, once, type Page } from "../common/api";
import { Button, Dialog, EmptyState, ErrorState, Loading, notify, notifyProblem, Status } from "../common/components";
import { go, Link, restoreScroll, setQuery } from "../common/router";
import { useHasRole } from "../common/session";
import { duration, Duration, shortTime, Time } from "../common/times";
import { ENDED, FIRST_ORDER, paramsOf, RANGES, STATUSES, useExecutions, useFilter, useOrder, type Filter, type Row, type SortKey } from "./data";
import { Triage } from "./triage";

export function Executions() {
  const filter = useFilter();
  const { rows, problem, more, reload } = useExecutions(filter, useOrder());
  const [chosen, setChosen] = useState<Set<string>>(new Set());
  const canOperate = useHasRole("operator");
  const filtered = Object.values(filter).some((each) => each.length > 0);

  useEffect(() => {
    if (rows) restoreScroll();
  }, [rows === null]);

  const toggle = (id: string) =>
    setChosen((known) => {
      const next = new Set(known);
      if (!next.delete(id)) next.add(id);
      return next;
    });

  return (
    <>
      <div class="page-head">
        <h1>Executions</h1>
        <Filters />
      </div>
      <Triage filter={filter} />
      {chosen.size > 0 && rows && (
        <Bulk rows={rows.filter((row) => chosen.has(row.execution_id))} filter={filter} more={!!more} clear={() => setChosen(new Set())} reload={reload} />
      )}
      {problem && !rows ? (
        <ErrorState problem={problem} retry={reload} />
      ) : !rows ? (
        <Loading what="Loading executions" />
      ) : rows.length === 0 ? (
        filtered ? (
          <EmptyState
            title="No matching executions"
            action={<Button onClick={() => setQuery(NO_FILTER)}>Show all executions</Button>}
          >
            <p>No execution matches the filter.</p>
          </EmptyState>
        ) : (
          <FirstRun />
        )
      ) : (
        <>
          <Table rows={rows} chosen={chosen} toggle={toggle} setChosen={setChosen} canOperate={canOperate} />
          {more && (
            <p class="more">
              <Button onClick={more}>Show more</Button>
            </p>
          )}
        </>
      )}
    </>
  );
}

function Filters() {
  const filter = useFilter();
  const [text, setText] = useState(filter.search);
  const box = useRef<HTMLInputElement>(null);
  useEffect(() => setText(filter.search), [filter.search]);
  useEffect(() => {
    if (text === filter.search) return;
    const timer = setTimeout(() => setQuery({ search: text.trim() }), 250);
    return () => clearTimeout(timer);
  }, [text]);
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.key !== "/" || /INPUT|TEXTAREA|SELECT/.test((event.target as HTMLElement).tagName)) return;
      event.preventDefault();
      box.current?.focus();
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, []);
  const flip = (status: string) => {
    const next = filter.status.includes(status) ? filter.status.filter((each) => each !== status) : [...filter.status, status];
    setQuery({ status: next.join(",") });
  };
  return (
    <div class="filters">
      <div class="chips" role="group" aria-label="Status">
        {STATUSES.map((status) => (
          <button key={status} type="button" class="chip" aria-pressed={filter.status.includes(status)} onClick={() => flip(status)}>
            <Status status={status} />
          </button>
        ))}
      </div>
      {FILTERS.filter(([key]) => filter[key]).map(([key, words]) => (
        <button key={key} type="button" class="chip filter" onClick={() => setQuery({ [key]: null })} title="Remove this filter">
          {words(String(filter[key]))} ✕
        </button>
      ))}
      <select aria-label="Started" value={RANGES.some(([key]) => key === filter.range) ? filter.range : ""} onChange={(event) => setQuery({ range: event.currentTarget.value })}>
        {RANGES.map(([key, words]) => (
          <option key={key} value={key}>
            {words}
          </option>
        ))}
      </select>
      <details class="menu">
        <summary class="button">More</summary>
        <div class="menu-form">
          <label for="filter-error">Error contains</label>
          <input id="filter-error" type="text" value={filter.error} onChange={(event) => setQuery({ error: event.currentTarget.value.trim() })} />
          <label for="filter-version">Version</label>
          <input id="filter-version" type="text" inputMode="numeric" value={filter.version} onChange={(event) => setQuery({ version: event.currentTarget.value.trim() })} />
          <label for="filter-trigger">Started by</label>
          <input id="filter-trigger" type="text" list="triggers" placeholder="schedule, or schedule NAME" value={filter.trigger} onChange={(event) => setQuery({ trigger: event.currentTarget.value.trim() })} />
          <datalist id="triggers">
            {TRIGGERS.map((each) => (
              <option key={each} value={each} />
            ))}
          </datalist>
          <label for="filter-label">Label</label>
          <input id="filter-label" type="text" placeholder="team=data" value={filter.label} onChange={(event) => setQuery({ label: event.currentTarget.value.trim() })} />
          <fieldset class="between">
            <legend>Duration in seconds</legend>
            <input aria-label="Took at least (seconds)" type="text" inputMode="decimal" placeholder="at least" value={filter.longer} onChange={(event) => setQuery({ longer: event.currentTarget.value.trim() })} />
            <span aria-hidden="true">–</span>
            <input aria-label="Took at most (seconds)" type="text" inputMode="decimal" placeholder="at most" value={filter.shorter} onChange={(event) => setQuery({ shorter: event.currentTarget.value.trim() })} />
          </fieldset>
          <SavedViews />
        </div>
      </details>
      <input
        ref={box}
        type="search"
        placeholder="Search path or id  ( / )"
        aria-label="Search path or id"
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
    </div>
  );
}

const NO_FILTER = { search: null, status: null, path: null, parent: null, range: null, error: null, version: null, longer: null, shorter: null, trigger: null, label: null };
const TRIGGERS = ["user", "schedule", "webhook", "nats", "object", "execution", "backfill", "playbook", "rerun"];

const FILTERS: [keyof Filter, (value: string) => string][] = [
  ["path", (value) => value],
  ["parent", (value) => `children of ${value}`],
  ["range", (value) => RANGES.find(([key]) => key === value)?.[1] ?? value.split("-").map((each) => shortTime(Number(each))).join(" – ")],
  ["error", (value) => `error: ${value.length > 40 ? `${value.slice(0, 39)}…` : value}`],
  ["version", (value) => `version ${value}`],
  ["longer", (value) => `took ≥ ${value} s`],
  ["shorter", (value) => `took ≤ ${value} s`],
  ["trigger", (value) => `started by ${value}`],
  ["label", (value) => `label ${value}`],
];

const VIEWS = "noetl.views";

/** Named filters, kept in this browser; a view is a link, so it can also be a bookmark. */
function SavedViews() {
  const [views, setViews] = useState<Record<string, string>>(() => {
    try {
      return JSON.parse(window.localStorage.getItem(VIEWS) ?? "{}");
    } catch {
      return {};
    }
  });
  const [name, setName] = useState("");
  const keep = (next: Record<string, string>) => {
    setViews(next);
    try {
      window.localStorage.setItem(VIEWS, JSON.stringify(next));
    } catch {
      notify("This browser does not store views.", { bad: true });
    }
  };
  return (
    <>
      <label for="view-name">Save this view as</label>
      <div class="row">
        <input id="view-name" type="text" class="grow" value={name} onInput={(event) => setName(event.currentTarget.value)} />
        <Button
          class="small"
          disabled={!name.trim()}
          onClick={() => {
            keep({ ...views, [name.trim()]: window.location.search });
            setName("");
          }}
        >
          Save
        </Button>
      </div>
      {Object.entries(views).map(([each, query]) => (
        <div key={each} class="row">
          <Link to={`/executions${query}`} class="grow">
            {each}
          </Link>
          <button type="button" class="link" aria-label={`Delete view ${each}`} onClick={() => keep(Object.fromEntries(Object.entries(views).filter(([key]) => key !== each)))}>
            Delete
          </button>
        </div>
      ))}
    </>
  );
}

interface TableProps {
  rows: Row[];
  chosen: Set<string>;
  toggle: (id: string) => void;
  setChosen: (ids: Set<string>) => void;
  canOperate: boolean;
}

function Table({ rows, chosen, toggle, setChosen, canOperate }: TableProps) {
  const body = useRef<HTMLTableSectionElement>(null);
  const onKey = (event: KeyboardEvent) => {
    const row = (event.target as HTMLElement).closest("tr");
    const beside = event.key === "ArrowDown" || event.key === "j" ? row?.nextElementSibling : event.key === "ArrowUp" || event.key === "k" ? row?.previousElementSibling : null;
    if (beside) {
      event.preventDefault();
      beside.querySelector<HTMLElement>("a.name")?.focus();
    } else if (event.key === "x" && row?.dataset.id && canOperate) toggle(row.dataset.id);
  };
  const all = rows.every((row) => chosen.has(row.execution_id));
  const [first, last, height] = useWindow(body, rows.length);
  return (
    <div class="card scroll-x">
      <table class="list executions">
        <thead>
          <tr>
            {canOperate && (
              <th class="pick">
                <input
                  type="checkbox"
                  aria-label="Select all shown"
                  checked={all}
                  onChange={() => setChosen(all ? new Set() : new Set(rows.map((row) => row.execution_id)))}
                />
              </th>
            )}
            <SortHead sort="status">Status</SortHead>
            <SortHead sort="path">Playbook</SortHead>
            <th class="by">Started by</th>
            <th>Progress</th>
            <SortHead sort="started">Started</SortHead>
            <SortHead sort="duration" right>
              Duration
            </SortHead>
          </tr>
        </thead>
        <tbody ref={body} onKeyDown={onKey}>
          {first > 0 && <tr class="gap" aria-hidden="true" style={{ height: `${first * height}px` }} />}
          {rows.slice(first, last).map((row) => (
            <tr key={row.execution_id} data-id={row.execution_id} class={chosen.has(row.execution_id) ? "chosen" : ""} onClick={(event) => open(event, row)}>
              {canOperate && (
                <td class="pick">
                  <input
                    type="checkbox"
                    aria-label={`Select ${row.execution_id}`}
                    checked={chosen.has(row.execution_id)}
                    onChange={() => toggle(row.execution_id)}
                  />
                </td>
              )}
              <td class="is">
                <Status status={row.status} />
              </td>
              <td class="what">
                <Link to={`/executions/${row.execution_id}`} class="name">
                  {row.path}
                </Link>
                {row.version && <span class="quiet"> v{row.version}</span>}
                {row.labels.map((label) => (
                  <button key={label} type="button" class="label" title={`Show executions with the label ${label}`} onClick={() => setQuery({ label })}>
                    {label}
                  </button>
                ))}
                <div class={row.error ? "error-line" : "quiet id"} title={row.error ?? undefined}>
                  {row.error ?? row.execution_id}
                </div>
              </td>
              <td class="by">
                {row.trigger && (
                  <button type="button" class="link" title={`Show executions started by ${row.trigger}`} onClick={() => setQuery({ trigger: row.trigger })}>
                    {row.trigger}
                  </button>
                )}
                {row.late_s !== null && row.late_s > 60 && <div class="wrong">{duration(row.late_s * 1000)} late</div>}
              </td>
              <td class="progress">
                <Steps done={row.steps_done} running={row.steps_running} failed={row.status === "failed"} />
              </td>
              <td class="when">
                <Time at={row.started_at} />
              </td>
              <td class="right long">
                <Duration from={row.started_at} to={row.ended_at ?? (ENDED.has(row.status) ? row.started_at : null)} />
              </td>
            </tr>
          ))}
          {last < rows.length && <tr class="gap" aria-hidden="true" style={{ height: `${(rows.length - last) * height}px` }} />}
        </tbody>
      </table>
    </div>
  );
}

/** A column head that sorts the list on the server; the order is in the address. */
function SortHead({ sort, right, children }: { sort: SortKey; right?: boolean; children: string }) {
  const now = useOrder();
  const active = now.sort === sort;
  const next = active ? (now.order === "asc" ? "desc" : "asc") : FIRST_ORDER[sort];
  const to = sort === "started" && next === "desc" ? { sort: null, order: null } : { sort, order: next === FIRST_ORDER[sort] ? null : next };
  return (
    <th class={right ? "right" : ""} aria-sort={active ? (now.order === "asc" ? "ascending" : "descending") : undefined}>
      <button type="button" class="sort" onClick={() => setQuery(to)}>
        {children}
        <span aria-hidden="true">{active ? (now.order === "asc" ? " ▴" : " ▾") : ""}</span>
      </button>
    </th>
  );
}

const WINDOWED = 200; // rows from which only the visible ones are in the document

/** The range of rows near the visible part of the window, and the height of a row. */
function useWindow(body: { current: HTMLTableSectionElement | null }, count: number): [number, number, number] {
  const [range, setRange] = useState<[number, number, number]>([0, Math.min(count, WINDOWED), 58]);
  useEffect(() => {
    if (count <= WINDOWED) return setRange([0, count, 58]);
    let frame = 0;
    const update = () => {
      frame = 0;
      const element = body.current;
      if (!element) return;
      const height = element.querySelector<HTMLElement>("tr[data-id]")?.offsetHeight || 58;
      const top = -element.getBoundingClientRect().top;
      const first = Math.max(0, Math.floor(top / height) - 30);
      setRange([first, Math.min(count, first + Math.ceil(window.innerHeight / height) + 60), height]);
    };
    const onScroll = () => (frame ||= requestAnimationFrame(update));
    update();
    window.addEventListener("scroll", onScroll, { passive: true });
    window.addEventListener("resize", onScroll);
    return () => {
      cancelAnimationFrame(frame);
      window.removeEventListener("scroll", onScroll);
      window.removeEventListener("resize", onScroll);
    };
  }, [count]);
  return range[1] > count || (count <= WINDOWED && range[1] !== count) ? [0, Math.min(count, WINDOWED), range[2]] : range;
}

function open(event: MouseEvent, row: Row) {
  if ((event.target as HTMLElement).closest("a, input, button, .pick") || window.getSelection()?.toString()) return;
  go(`/executions/${row.execution_id}`);
}

const MAX_DOTS = 8;

/** Steps as dots, completed ones first, with their number. */
function Steps({ done, running, failed }: { done: number; running: number; failed: boolean }) {
  const words = `${done} ${done === 1 ? "step" : "steps"} done${running ? `, ${running} running` : ""}`;
  const bad = failed && done > 0 ? 1 : 0;
  const dots = [...Array(Math.min(done - bad, MAX_DOTS)).fill("done"), ...Array(bad).fill("failed"), ...Array(Math.min(running, 4)).fill("running")];
  return (
    <span class="dots" title={words}>
      <span aria-hidden="true">
        {dots.map((kind, at) => (
          <i key={at} class={kind} />
        ))}
      </span>
      <span class="number quiet">
        {done}
        {running ? ` + ${running}` : ""}
        <span class="hidden">{` (${words})`}</span>
      </span>
    </span>
  );
}

const AT_ONCE = 20;

/** All executions that match a filter. */
async function allMatching(filter: Filter): Promise<Row[]> {
  const found: Row[] = [];
  let before: string | null = null;
  do {
    const page: Page<Row> = await api.get<Page<Row>>("/api/executions", { ...paramsOf(filter), before, limit: 1000 });
    found.push(...page.items);
    before = page.next;
  } while (before);
  return found;
}

function Bulk({ rows: selected, filter, more, clear, reload }: { rows: Row[]; filter: Filter; more: boolean; clear: () => void; reload: () => void }) {
  const [asking, setAsking] = useState<"cancel" | "rerun" | null>(null);
  const [matching, setMatching] = useState<Row[] | null>(null);
  const rows = matching ?? selected;
  const live = rows.filter((row) => !ENDED.has(row.status));
  const act = async (what: "cancel" | "rerun") => {
    const each = what === "cancel" ? live : rows;
    const answers: PromiseSettledResult<unknown>[] = [];
    for (let at = 0; at < each.length; at += AT_ONCE) {
      answers.push(...(await Promise.allSettled(each.slice(at, at + AT_ONCE).map((row) => api.post(`/api/executions/${row.execution_id}/${what}`, {}, what === "rerun" ? once() : {})))));
    }
    const wrong = answers.filter((answer) => answer.status === "rejected");
    notify(`${what === "cancel" ? "Cancelled" : "Rerun"}: ${answers.length - wrong.length}`);
    if (wrong.length) notifyProblem((wrong[0] as PromiseRejectedResult).reason);
    setAsking(null);
    clear();
    reload();
  };
  return (
    <div class="bulk card" role="region" aria-label="Selected executions">
      <strong>{rows.length.toLocaleString()} selected</strong>
      {more && !matching && (
        <Button class="small" onClick={() => allMatching(filter).then(setMatching, notifyProblem)}>
          Select all matches
        </Button>
      )}
      <Button kind="danger" class="small" disabled={!live.length} onClick={() => setAsking("cancel")}>
        Cancel {live.length || ""}
      </Button>
      <Button class="small" onClick={() => setAsking("rerun")}>
        Rerun {rows.length}
      </Button>
      <Button class="small" onClick={clear}>
        Clear
      </Button>
      {asking && (
        <Dialog
          title={asking === "cancel" ? `Cancel ${live.length} executions?` : `Rerun ${rows.length} executions?`}
          onClose={() => setAsking(null)}
          actions={
            <Button kind={asking === "cancel" ? "danger" : "primary"} onClick={() => act(asking)}>
              {asking === "cancel" ? "Cancel executions" : "Rerun"}
            </Button>
          }
        >
          <p>
            {asking === "cancel"
              ? "Running steps and child executions are stopped. This cannot be undone; the executions can be rerun."
              : "Each is started as a new execution with the same payload."}
          </p>
        </Dialog>
      )}
    </div>
  );
}

function FirstRun() {
  return (
    <EmptyState
      title="No executions yet"
      action={
        <Link to="/playbooks" class="button primary">
          Go to playbooks
        </Link>
      }
    >
      <p>An execution is one run of a playbook. Start one from a playbook’s page, or from a terminal:</p>
      <pre>
        noetl register playbook.yaml{"\n"}noetl execute examples/quickstart
      </pre>
      <p class="quiet">It appears here immediately; you can follow every step while it runs.</p>
    </EmptyState>
  );
}
