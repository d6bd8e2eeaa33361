/** The log of an execution: loaded in pages, then streamed. */
import { useEffect, useState } from "preact/hooks";
import { api, Problem } from "../common/api";
import { listen, type StreamState } from "../common/stream";
import { Log, type OutlinePage } from "./log";

const FIRST_PAGE = 2_000;
const PAGE = 20_000;
const LARGE = 20_000; // number of events above which the page is updated twice a second

export interface Live {
  log: Log;
  /** All events that existed when the page was opened are loaded. */
  loaded: boolean;
  stream: StreamState;
  problem: Problem | null;
  /** Increases when the log grows. */
  version: number;
}

export function useLog(id: string): Live {
  const [live, setLive] = useState<Live>(() => start());
  useEffect(() => {
    const log = new Log();
    let stopped = false;
    let stop = () => {};
    let scheduled = false;
    setLive({ ...start(), log });
    // Messages that arrive within one frame are rendered together.
    const show = (changes: Partial<Live> = {}) => {
      if (stopped) return;
      if (Object.keys(changes).length) return setLive((known) => ({ ...known, ...changes, log, version: log.version }));
      if (scheduled) return;
      scheduled = true;
      setTimeout(
        () => {
          scheduled = false;
          if (!stopped) setLive((known) => ({ ...known, log, version: log.version }));
        },
        log.length > LARGE ? 500 : 16,
      );
    };
    const load = async () => {
      let failed = false;
      for (;;) {
        try {
          const page = await api.get<OutlinePage>(`/api/executions/${id}/outline`, { after: log.length, limit: log.length ? PAGE : FIRST_PAGE });
          if (stopped) return;
          log.take(page);
          show(failed ? { problem: null } : {});
          failed = false;
          if (!page.next) break;
        } catch (error) {
          if (stopped) return;
          const problem = error as Problem;
          failed = true;
          show({ problem });
          if (!problem.unreachable) return;
          await new Promise((resolve) => setTimeout(resolve, 1500));
        }
      }
      show({ loaded: true });
      if (log.length && log.nameOf(log.length) === "playbook.processed") return show({ stream: "ended" });
      stop = listen({
        path: `/api/executions/${id}/outline/stream`,
        after: log.length,
        onEvent: (page: OutlinePage) => {
          log.take(page);
          show();
        },
        onState: (stream) => show({ stream }),
      });
    };
    void load();
    return () => {
      stopped = true;
      stop();
    };
  }, [id]);
  return live;
}

const start = (): Live => ({ log: new Log(), loaded: false, stream: "connecting", problem: null, version: 0 });
