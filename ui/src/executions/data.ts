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
}

export const STATUSES = ["running", "paused", "pending", "success", "failed", "cancelled"];
export const ENDED = new Set(["success", "failed", "cancelled"]);

const PAGE = 50;
const POLL_RUNNING = 1500;
const POLL_IDLE = 4000;

export interface Filter {
  search: string;
  status: string[];
  path: string;
  parent: string;
}

export function useFilter(): Filter {
  const { query } = useLocation();
  return useMemo(
    () => ({
      search: query.get("search") ?? "",
      status: query.getAll("status").flatMap((each) => each.split(",")).filter((each) => STATUSES.includes(each)),
      path: query.get("path") ?? "",
      parent: query.get("parent") ?? "",
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

/** Executions that match the filter, newest first; the first page is polled while the tab is visible. */
export function useExecutions(filter: Filter): Listed {
  const key = JSON.stringify(filter);
  const [rows, setRows] = useState<Row[] | null>(null);
  const [next, setNext] = useState<string | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [round, setRound] = useState(0);
  const pages = useRef(1);

  const params = (before: string | null) => ({ ...filter, before, limit: PAGE });

  useEffect(() => {
    pages.current = 1;
    setRows(null);
    setNext(null);
  }, [key]);

  useEffect(() => {
    const leaving = new AbortController();
    let timer = 0;
    const poll = async () => {
      let lively = false;
      if (!document.hidden) {
        try {
          const found = await api.get<Page<Row>>("/api/executions", params(null), leaving.signal);
          lively = found.items.some((row) => !ENDED.has(row.status));
          setRows((known) => merged(found.items, pages.current > 1 ? known : null));
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

/** Merge two lists; rows of the first list take precedence. */
function merged(fresh: Row[], older: Row[] | null): Row[] {
  if (!older) return fresh;
  const seen = new Set(fresh.map((row) => row.execution_id));
  return [...fresh, ...older.filter((row) => !seen.has(row.execution_id))];
}
