/** The elements of a loop's collection by index: from the event `loop.started`, or from the result store in pages. */
import { useEffect, useReducer, useRef } from "preact/hooks";
import { api, type Page } from "../common/api";
import { encoded } from "./results";
import type { Log } from "./log";
import type { Reference } from "./snapshot";

const PAGE = 200;

interface Collection {
  items: unknown[] | null;
  reference: Reference | null;
}

/** Returns a function that gives the item of an iteration path, or undefined while it is loaded. */
export function useItems(id: string, log: Log, version: number, step: string | null): (run: number, path: string) => unknown {
  const [, redraw] = useReducer((count: number) => count + 1, 0);
  const known = useRef(new Map<string, Collection | "loading">());
  const pages = useRef(new Map<string, unknown[] | "loading">());
  const starts = useRef(new Map<string, number>());
  const scanned = useRef(0);
  useEffect(() => {
    known.current.clear();
    pages.current.clear();
    starts.current.clear();
    scanned.current = 0;
  }, [id]);
  for (let seq = scanned.current + 1; seq <= log.length; seq++) {
    if (log.nameOf(seq) === "loop.started") starts.current.set(`${log.run.data[seq - 1]}/${log.pathOf(seq) ?? ""}`, seq);
  }
  scanned.current = log.length;
  return (run, path) => {
    const cut = path.lastIndexOf(".");
    const index = Number(path.slice(cut + 1));
    const key = `${run}/${cut < 0 ? "" : path.slice(0, cut)}`;
    const seq = starts.current.get(key);
    if (!seq) return undefined;
    const found = known.current.get(key);
    if (found === undefined) {
      known.current.set(key, "loading");
      void api.get<Page<{ payload: { items?: unknown[]; collection?: Reference } }>>(`/api/executions/${id}/events`, { after: seq - 1, limit: 1 }).then((page) => {
        const payload = page.items[0].payload;
        known.current.set(key, { items: payload.items ?? null, reference: payload.collection ?? null });
        redraw(0);
      }, () => known.current.delete(key));
      return undefined;
    }
    if (found === "loading") return undefined;
    if (found.items) return found.items[index];
    if (!found.reference) return undefined;
    const first = Math.floor(index / PAGE) * PAGE;
    const name = `${key}@${first}`;
    const page = pages.current.get(name);
    if (page === undefined) {
      pages.current.set(name, "loading");
      void api.get<{ data: unknown[] }>(`/api/results/${encoded(found.reference)}/part`, { offset: first, limit: PAGE }).then(
        (part) => {
          pages.current.set(name, part.data);
          redraw(0);
        },
        () => pages.current.set(name, []),
      );
      return undefined;
    }
    return page === "loading" ? undefined : page[index - first];
  };
}

/** A value in one line. */
export function inLine(value: unknown): string {
  if (value === undefined) return "";
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > 160 ? `${text.slice(0, 159)}…` : text;
}
