/** Client-side routing below the server's path prefix. */
import { createContext, type ComponentChildren } from "preact";
import { useContext, useEffect, useMemo, useState } from "preact/hooks";

/** The path prefix without a trailing slash: "" or "/noetl". */
export const prefix = new URL(document.baseURI).pathname.replace(/\/$/, "");

export interface PageLocation {
  /** Path below the prefix, with a leading slash. */
  path: string;
  query: URLSearchParams;
}

const read = (): PageLocation => {
  const { pathname, search } = window.location;
  const below = pathname.startsWith(prefix) ? pathname.slice(prefix.length) : pathname;
  return { path: below || "/", query: new URLSearchParams(search) };
};

const LocationContext = createContext<PageLocation>(read());
const listeners = new Set<() => void>();

export function Router({ children }: { children: ComponentChildren }) {
  const [location, setLocation] = useState(read);
  useEffect(() => {
    const update = () => setLocation(read());
    listeners.add(update);
    window.addEventListener("popstate", update);
    return () => {
      listeners.delete(update);
      window.removeEventListener("popstate", update);
    };
  }, []);
  return <LocationContext.Provider value={location}>{children}</LocationContext.Provider>;
}

export const useLocation = () => useContext(LocationContext);

/** The URL of a page path, for `href`. */
export const pageUrl = (path: string) => prefix + path;

const SCROLLED = new Map<string, number>();

/** Scroll to where this address was left; called when its content is shown. */
export function restoreScroll() {
  const top = SCROLLED.get(window.location.pathname + window.location.search);
  if (top) requestAnimationFrame(() => window.scrollTo(0, top));
}

export function go(path: string, { replace = false } = {}) {
  if (!replace) {
    SCROLLED.set(window.location.pathname + window.location.search, window.scrollY);
    if (!pageUrl(path).startsWith(`${window.location.pathname}?`)) window.scrollTo(0, 0);
  }
  window.history[replace ? "replaceState" : "pushState"](null, "", pageUrl(path));
  listeners.forEach((update) => update());
}

/** Change keys of the query; null or "" removes a key. */
export function setQuery(changes: Record<string, string | null>, { replace = true } = {}) {
  const { path, query } = read();
  for (const [key, value] of Object.entries(changes)) {
    if (value) query.set(key, value);
    else query.delete(key);
  }
  const text = query.toString();
  go(path + (text ? `?${text}` : ""), { replace });
}

/** One key of the query and its setter. */
export function useQueryValue(key: string, otherwise = ""): [string, (value: string) => void] {
  const { query } = useLocation();
  return [query.get(key) ?? otherwise, (value) => setQuery({ [key]: value === otherwise ? null : value })];
}

interface LinkProps {
  to: string;
  class?: string;
  title?: string;
  style?: Record<string, string>;
  children: ComponentChildren;
  [more: `aria-${string}`]: string | undefined;
}

/** A link with client-side navigation; with a modifier key it is an ordinary link. */
export function Link({ to, children, ...more }: LinkProps) {
  const follow = (event: MouseEvent) => {
    if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(to);
  };
  return (
    <a href={pageUrl(to)} onClick={follow} {...more}>
      {children}
    </a>
  );
}

/** Match a pattern such as "/executions/:id": the parameters, or null. A trailing `*` matches the rest. */
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
  const { path } = useLocation();
  return useMemo(() => {
    for (const [pattern, value] of routes) {
      const params = match(pattern, path);
      if (params) return { value, params };
    }
    return null;
  }, [path]);
}
