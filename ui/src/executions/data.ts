/** Rows of the execution list, and the filter in the URL. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { api, Problem, type Page } from "../common/api";
import { useLocation } from "../common/router";

export interface Row {
  execution_id: string;
  path: string;
  version: string | null;
  status: string;
  started_at: string;
  ended_at: string | null;
  duration_ms: number | null;
  error: string | null;
  parent: string | null;
  playbook: string;
  steps_done: number;
  steps_running: number;
  seq: number;
  trigger: string;
  labels: string[];
  late_s: number | null;
}

export const STATUSES = ["running", "waiting", "paused", "pending", "success", "failed", "cancelled"];
export const ENDED = new Set(["success", "failed", "cancelled"]);

const PAGE = 100;
const NEXT_PAGE = 1000;
const POLL_RUNNING = 1500;
const POLL_IDLE = 4000;

export interface Filter {
  search: string;
  status: string[];
  path: string;
  parent: string;
  /** `24h`, or two instants in ms: `1700000000000-1700003600000`. */
  range: string;
  error: string;
  version: string;
  /** Seconds. */
  longer: string;
  shorter: string;
  /** `schedule`, or `schedule nightly`. */
  trigger: string;
  /** `key=value` or `key`, separated by commas. */
  label: string;
}

export type SortKey = "started" | "duration" | "path" | "status";

/** The order of the list; the first value of a new key is the one users look for: longest, newest, A to Z. */
export interface Order {
  sort: SortKey;
  order: "asc" | "desc";
}

export const FIRST_ORDER: Record<SortKey, "asc" | "desc"> = { started: "desc", duration: "desc", path: "asc", status: "asc" };

export function useOrder(): Order {
  const { query } = useLocation();
  const sort = (query.get("sort") ?? "started") as SortKey;
  const known = sort in FIRST_ORDER ? sort : "started";
  const order = query.get("order");
  return { sort: known, order: order === "asc" || order === "desc" ? order : FIRST_ORDER[known] };
}

const SPANS: Record<string, number> = { "1h": 3600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000 };
export const RANGES: [string, string][] = [
  ["", "any time"],
  ["1h", "last hour"],
  ["24h", "last 24 hours"],
  ["7d", "last 7 days"],
  ["30d", "last 30 days"],
];

/** The parameters of the API for a filter. A relative range is rounded to a minute, so that requests can be compared. */
export function paramsOf(filter: Filter): Record<string, any> {
  const { range, longer, shorter, label, ...rest } = filter;
  const ms = (seconds: string) => (Number(seconds) > 0 ? Number(seconds) * 1000 : null);
  const span = SPANS[range];
  const [from, to] = /^(\d+)-(\d+)$/.exec(range)?.slice(1).map(Number) ?? [];
  const since = span ? Math.floor((Date.now() / 1000 - span) / 60) * 60 : from !== undefined ? from / 1000 : null;
  return { ...rest, since, until: to !== undefined ? to / 1000 : null, least_ms: ms(longer), most_ms: ms(shorter), label: label.split(",").map((each) => each.trim()).filter(Boolean) };
}

export function useFilter(): Filter {
  const { query } = useLocation();
  return useMemo(
    () => ({
      search: query.get("search") ?? "",
      status: query.getAll("status").flatMap((each) => each.split(",")).filter((each) => STATUSES.includes(each)),
      path: query.get("path") ?? "",
      parent: query.get("parent") ?? "",
      range: query.get("range") ?? "",
      error: query.get("error") ?? "",
      version: query.get("version") ?? "",
      longer: query.get("longer") ?? "",
      shorter: query.get("shorter") ?? "",
      trigger: query.get("trigger") ?? "",
      label: query.get("label") ?? "",
    }),
    [query],
  );
}

export interface Listed {
  rows: Row[] | null;
  problem: Problem | null;
  more: (() => void) | null;
  reload: () => void;
}

const PLACES = new Map<string, { rows: Row[]; next: string | null; pages: number }>();

/** Executions that match the filter; the first page is polled while the tab is visible. */
export function useExecutions(filter: Filter, order: Order): Listed {
  const key = JSON.stringify([filter, order]);
  const [rows, setRows] = useState<Row[] | null>(null);
  const [next, setNext] = useState<string | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [round, setRound] = useState(0);
  const pages = useRef(1);

  const params = (before: string | null) => ({ ...paramsOf(filter), ...order, before, limit: before ? NEXT_PAGE : PAGE });

  useEffect(() => {
    // Back to a list that was left: the rows that it had, at once.
    const left = PLACES.get(key);
    pages.current = left ? left.pages : 1;
    setRows(left ? left.rows : null);
    setNext(left ? left.next : null);
  }, [key]);
  useEffect(() => {
    if (rows) PLACES.set(key, { rows, next, pages: pages.current });
    if (PLACES.size > 8) PLACES.delete(PLACES.keys().next().value!);
  }, [rows, next]);

  const newestFirst = order.sort === "started" && order.order === "desc";
  useEffect(() => {
    const leaving = new AbortController();
    let timer = 0;
    const poll = async () => {
      let lively = false;
      if (!document.hidden) {
        try {
          const found = await api.get<Page<Row>>("/api/executions", params(null), leaving.signal);
          lively = found.items.some((row) => !ENDED.has(row.status));
          setRows((known) => (newestFirst ? merged(found.items, pages.current > 1 ? known : null) : pages.current > 1 ? updated(known ?? [], found.items) : found.items));
          if (pages.current === 1) setNext(found.next);
          setProblem(null);
        } catch (error) {
          if (leaving.signal.aborted) return;
          setProblem(error as Problem);
        }
      }
      if (!leaving.signal.aborted) timer = window.setTimeout(poll, lively ? POLL_RUNNING : POLL_IDLE);
    };
    void poll();
    return () => {
      leaving.abort();
      clearTimeout(timer);
    };
  }, [key, round]);

  const more = next
    ? async () => {
        const found = await api.get<Page<Row>>("/api/executions", params(next));
        pages.current += 1;
        setRows((known) => merged(known ?? [], found.items));
        setNext(found.next);
      }
    : null;
  return { rows, problem, more, reload: () => setRound((count) => count + 1) };
}

/** The rows with what is known anew of them, in their place. */
function updated(rows: Row[], fresh: Row[]): Row[] {
  const known = new Map(fresh.map((row) => [row.execution_id, row]));
  return rows.map((row) => known.get(row.execution_id) ?? row);
}

/** Merge two lists; rows of the first list take precedence. */
function merged(fresh: Row[], older: Row[] | null): Row[] {
  if (!older) return fresh;
  const seen = new Set(fresh.map((row) => row.execution_id));
  return [...fresh, ...older.filter((row) => !seen.has(row.execution_id))];
}
