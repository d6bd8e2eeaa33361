/** The lines that the tasks of an execution print: loaded in pages, then streamed. */
import { useEffect, useState } from "preact/hooks";
import { api, Problem, type Page } from "../common/api";
import { listen, type StreamState } from "../common/stream";

export interface Line {
  seq: number;
  /** Milliseconds. */
  at: number;
  step: string;
  task: string;
  iteration: string | null;
  run: number;
  visit: number;
  attempt: number;
  stream: "stdout" | "stderr";
  level: string | null;
  text: string;
  /** The number of lines that are missing here. */
  dropped?: number;
}

export interface Lines {
  lines: Line[];
  loaded: boolean;
  stream: StreamState;
  problem: Problem | null;
  /** Increases when lines are added. */
  version: number;
}

const PAGE = 10_000;
const RETRY = 1500;

export function useLines(id: string, ended: boolean): Lines {
  const [shown, setShown] = useState<Lines>(() => ({ lines: [], loaded: false, stream: "connecting", problem: null, version: 0 }));
  useEffect(() => {
    const lines: Line[] = [];
    let version = 0;
    let stopped = false;
    let stop = () => {};
    let timer = 0;
    const show = (changes: Partial<Lines> = {}) => {
      if (stopped) return;
      if (Object.keys(changes).length) return setShown((known) => ({ ...known, ...changes, lines, version: ++version }));
      if (timer) return;
      timer = window.setTimeout(() => {
        timer = 0;
        if (!stopped) setShown((known) => ({ ...known, lines, version: ++version }));
      }, 60);
    };
    const load = async () => {
      let after = 0;
      for (;;) {
        try {
          const page = await api.get<Page<Line>>(`/api/executions/${id}/logs`, { after, limit: PAGE });
          if (stopped) return;
          for (const line of page.items) lines.push(line);
          show({ problem: null });
          after = lines.at(-1)?.seq ?? 0;
          if (!page.next) break;
        } catch (error) {
          if (stopped) return;
          show({ problem: error as Problem });
          if (!(error as Problem).unreachable) return;
          await new Promise((resolve) => setTimeout(resolve, RETRY));
        }
      }
      show({ loaded: true, problem: null });
      stop = listen({
        path: `/api/executions/${id}/logs/stream`,
        after,
        onEvent: (more: Line[]) => {
          for (const line of more) if (line.seq > (lines.at(-1)?.seq ?? 0)) lines.push(line);
          show();
        },
        onState: (stream) => show({ stream }),
      });
    };
    void load();
    return () => {
      stopped = true;
      stop();
      clearTimeout(timer);
    };
  }, [id]);
  return shown;
}
