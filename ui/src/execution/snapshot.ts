/** State or explanation at an event of the log: fetched with a debounce, one request at a time. */
import { useEffect, useRef, useState } from "preact/hooks";
import { api, Problem } from "../common/api";

const REST = 140;
const FASTEST = 900;
const SHARE = 8; // after a request of one second the next one is sent after eight

export interface Snapshot<T> {
  value: T | null;
  problem: Problem | null;
  /** The value belongs to an earlier event; the current one is being fetched. */
  stale: boolean;
}

/** GET `path?at=at` whenever `seq` changes; with `at` null the server returns the current state.
 *
 * An earlier event is requested after a debounce, and an outdated request is aborted. The current state is
 * polled while the log grows, one request at a time, with an interval proportional to the response time. */
export function useSnapshot<T>(path: string, seq: number, at: number | null, wanted: boolean, params: Record<string, boolean> = {}): Snapshot<T> {
  const [found, setFound] = useState<{ key: string; value: T } | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const live = at === null;
  const more = JSON.stringify(params);
  const key = `${path}@${seq} ${live} ${more}`;
  const newest = useRef(key);
  newest.current = key;
  const known = useRef<string | null>(null);

  useEffect(() => {
    if (!wanted || !seq) return;
    const leaving = new AbortController();
    let timer = 0;
    const ask = async () => {
      const asking = newest.current;
      const begun = Date.now();
      try {
        const value = await api.get<T>(path, { at, ...params }, leaving.signal);
        known.current = asking;
        setFound({ key: asking, value });
        setProblem(null);
      } catch (error) {
        if (leaving.signal.aborted) return;
        setProblem(error as Problem);
      }
      if (live) timer = window.setTimeout(next, Math.max(FASTEST, SHARE * (Date.now() - begun)));
    };
    const next = () => {
      if (known.current !== newest.current) void ask();
      else timer = window.setTimeout(next, FASTEST);
    };
    if (known.current !== newest.current) timer = window.setTimeout(ask, live || known.current === null ? 0 : REST);
    else if (live) timer = window.setTimeout(next, FASTEST);
    return () => {
      leaving.abort();
      clearTimeout(timer);
    };
  }, [path, wanted && seq > 0, at, more]);

  useEffect(() => {
    known.current = null;
    setFound(null);
    setProblem(null);
  }, [path]);
  return { value: found?.value ?? null, problem, stale: !live && !!found && found.key !== key };
}

export interface Output {
  status: string;
  data: unknown;
  ref: Reference | null;
  error: { kind: string; message: string } | null;
  [helper: string]: unknown;
}

export interface Reference {
  type: string;
  locator: Record<string, unknown>;
  meta: { content_type: string; bytes: number; sha256: string; rows?: number; columns?: string[]; ttl?: string };
}

/** Response of `/state`. */
export interface StateDocument {
  seq: number;
  at: string;
  status: string;
  workload: Record<string, unknown>;
  ctx: Record<string, unknown>;
  steps: Record<string, { status: string; runs: number; open: number; started_at: string | null; finished_at: string | null; output: Output | null }>;
  waiting: { step: string; token: string; from: string | null; reason: string }[];
  runs: {
    run_id: string;
    step: string;
    iteration: number[] | null;
    status: string;
    epoch: number;
    worker: string | null;
    task: string | null;
    since: string | null;
    scopes: { step: Record<string, unknown>; iter: Record<string, unknown> };
  }[];
  loops: { step: string; run_id: string; path: number[]; count: number; finished: number; succeeded: number; failed: number; skipped: number }[];
  children: { run_id: string; path: string; execution_id: string | null }[];
  output: Output | null;
  error: { kind: string; message: string } | null;
}

/** Response of `/why`; summary, reasons and token path only for the current state. */
export interface Explanation {
  findings: Finding[];
  summary?: string;
  because?: string[];
  way?: string[];
}

export interface Finding {
  subject: string;
  text: string;
  id?: string;
  step?: string;
  since?: number;
  due?: number;
}
