/** Fetches data for a component, polls it, and aborts the request when the component is unmounted. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { api, Problem } from "./api";
import { onReachable } from "./connection";

export interface FetchState<T> {
  value: T | null;
  problem: Problem | null;
  reload: () => void;
}

const RETRY = 2000; // ms between requests while the server is unreachable

/** The response of a GET, polled every `every` ms while the tab is visible. `path` null sends no request.
 *
 * While the server is unreachable the request is repeated, and it is sent again when the server responds; `once` keeps the first
 * response, for text that a user edits. */
export function useFetch<T>(path: string | null, params: Record<string, any> = {}, every: number | "once" = 0): FetchState<T> {
  const [value, setValue] = useState<T | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [round, setRound] = useState(0);
  const key = path && path + JSON.stringify(params);
  const period = every === "once" ? 0 : every;
  const shown = useRef<string | null>(null);

  useEffect(() => {
    if (!path) return;
    if (shown.current !== key) {
      setValue(null);
      setProblem(null);
    }
    const leaving = new AbortController();
    let timer = 0;
    const poll = async () => {
      if (period && document.hidden) {
        timer = window.setTimeout(poll, period);
        return;
      }
      let lost = false;
      try {
        const found = await api.get<T>(path, params, leaving.signal);
        shown.current = key;
        setValue(found);
        setProblem(null);
      } catch (error) {
        if (leaving.signal.aborted) return;
        const problem = error instanceof Problem ? error : new Problem(-1, "Unexpected error", String(error));
        lost = problem.unreachable;
        setProblem(problem);
      }
      if (!leaving.signal.aborted && (period || lost)) timer = window.setTimeout(poll, lost ? Math.min(period || RETRY, RETRY) : period);
    };
    void poll();
    return () => {
      leaving.abort();
      clearTimeout(timer);
    };
  }, [key, every, round]);

  const reload = useCallback(() => setRound((count) => count + 1), []);
  useEffect(() => (every === "once" ? undefined : onReachable((reachable) => reachable && reload())), []);
  return { value, problem, reload };
}
