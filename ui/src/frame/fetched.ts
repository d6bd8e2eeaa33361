/** Data of a page: fetched, kept fresh by asking again, cancelled when the page is left. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { api, Problem } from "./api";

export interface Fetched<T> {
  value: T | null;
  problem: Problem | null;
  again: () => void;
}

/** What a GET answers; asked again every `every` ms while the tab is seen. `path` null asks nothing. */
export function useFetched<T>(path: string | null, params: Record<string, any> = {}, every = 0): Fetched<T> {
  const [value, setValue] = useState<T | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [round, setRound] = useState(0);
  const key = path && path + JSON.stringify(params);
  const shown = useRef<string | null>(null);

  useEffect(() => {
    if (!path) return;
    if (shown.current !== key) {
      setValue(null);
      setProblem(null);
    }
    const leaving = new AbortController();
    let timer = 0;
    const look = async () => {
      if (every && document.hidden) {
        timer = window.setTimeout(look, every);
        return;
      }
      try {
        const found = await api.get<T>(path, params, leaving.signal);
        shown.current = key;
        setValue(found);
        setProblem(null);
      } catch (error) {
        if (leaving.signal.aborted) return;
        setProblem(error instanceof Problem ? error : new Problem(-1, "Something went wrong", String(error)));
      }
      if (every && !leaving.signal.aborted) timer = window.setTimeout(look, every);
    };
    void look();
    return () => {
      leaving.abort();
      clearTimeout(timer);
    };
  }, [key, every, round]);

  const again = useCallback(() => setRound((count) => count + 1), []);
  return { value, problem, again };
}
