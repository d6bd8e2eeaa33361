/** Addresses of the page: paths below the prefix the server shows us under, and their query. */
import { createContext, type ComponentChildren } from "preact";
import { useContext, useEffect, useMemo, useState } from "preact/hooks";

/** The path prefix, without a slash at its end: "" or "/noetl". */
export const prefix = new URL(document.baseURI).pathname.replace(/\/$/, "");

export interface Place {
  /** Below the prefix, always with a slash in front. */
  path: string;
  query: URLSearchParams;
}

const read = (): Place => {
  const { pathname, search } = window.location;
  const below = pathname.startsWith(prefix) ? pathname.slice(prefix.length) : pathname;
  return { path: below || "/", query: new URLSearchParams(search) };
};

const PlaceContext = createContext<Place>(read());
const moved = new Set<() => void>();

export function Router({ children }: { children: ComponentChildren }) {
  const [place, setPlace] = useState(read);
  useEffect(() => {
    const look = () => setPlace(read());
    moved.add(look);
    window.addEventListener("popstate", look);
    return () => {
      moved.delete(look);
      window.removeEventListener("popstate", look);
    };
  }, []);
  return <PlaceContext.Provider value={place}>{children}</PlaceContext.Provider>;
}

export const usePlace = () => useContext(PlaceContext);

/** The address of a path of ours, for `href`. */
export const addressOf = (path: string) => prefix + path;

export function go(path: string, { replace = false } = {}) {
  window.history[replace ? "replaceState" : "pushState"](null, "", addressOf(path));
  moved.forEach((look) => look());
}

/** Change parts of the query in place; null or "" removes a key. */
export function setQuery(changes: Record<string, string | null>, { replace = true } = {}) {
  const { path, query } = read();
  for (const [key, value] of Object.entries(changes)) {
    if (value) query.set(key, value);
    else query.delete(key);
  }
  const text = query.toString();
  go(path + (text ? `?${text}` : ""), { replace });
}

/** One key of the query with its setter; the rest of the query stays. */
export function useQueryValue(key: string, otherwise = ""): [string, (value: string) => void] {
  const { query } = usePlace();
  return [query.get(key) ?? otherwise, (value) => setQuery({ [key]: value === otherwise ? null : value })];
}

interface LinkProps {
  to: string;
  class?: string;
  title?: string;
  children: ComponentChildren;
  [more: `aria-${string}`]: string | undefined;
}

/** An anchor that moves within the page; with a modifier key it stays an ordinary link. */
export function Link({ to, children, ...more }: LinkProps) {
  const follow = (event: MouseEvent) => {
    if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(to);
  };
  return (
    <a href={addressOf(to)} onClick={follow} {...more}>
      {children}
    </a>
  );
}

/** Matches "/executions/:id" against a path: the parameters, or null. A last `*` takes the rest. */
export function match(pattern: string, path: string): Record<string, string> | null {
  const wanted = pattern.split("/").filter(Boolean);
  const given = path.split("/").filter(Boolean);
  const found: Record<string, string> = {};
  for (let i = 0; i < wanted.length; i++) {
    if (wanted[i] === "*") {
      found.rest = given.slice(i).map(decodeURIComponent).join("/");
      return found;
    }
    if (i >= given.length) return null;
    if (wanted[i].startsWith(":")) found[wanted[i].slice(1)] = decodeURIComponent(given[i]);
    else if (wanted[i] !== given[i]) return null;
  }
  return wanted.length === given.length ? found : null;
}

/** The first route that matches. */
export function useRoute<T>(routes: [string, T][]): { value: T; params: Record<string, string> } | null {
  const { path } = usePlace();
  return useMemo(() => {
    for (const [pattern, value] of routes) {
      const params = match(pattern, path);
      if (params) return { value, params };
    }
    return null;
  }, [path]);
}
