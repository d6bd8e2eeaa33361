/** Dates and durations: short local time, exact time on hover. */
import { useEffect, useState } from "preact/hooks";
import { serverNow } from "./api";

const today = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const older = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

const parsed = (at: string | number) => new Date(typeof at === "number" ? at : at);

export function exactly(at: string | number): string {
  const date = parsed(at);
  return `${exact.format(date)}\n${date.toISOString()}`;
}

export function shortTime(at: string | number): string {
  const date = parsed(at);
  return (date.toDateString() === new Date().toDateString() ? today : older).format(date);
}

/** A point in time, local; `at` is ISO text or milliseconds. */
export function Time({ at }: { at: string | number | null | undefined }) {
  if (at === null || at === undefined) return <span class="quiet">–</span>;
  return (
    <time dateTime={parsed(at).toISOString()} title={exactly(at)}>
      {shortTime(at)}
    </time>
  );
}

export function duration(ms: number): string {
  if (ms < 0.5) return "0 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(2)} s`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const s = Math.floor(ms / 1000);
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

/** The server's time in milliseconds, updated every `every` ms while `running`. */
export function useNow(running: boolean, every = 1000): number {
  const [now, setNow] = useState(serverNow);
  useEffect(() => {
    if (!running) return;
    setNow(serverNow());
    const timer = setInterval(() => setNow(serverNow()), every);
    return () => clearInterval(timer);
  }, [running, every]);
  return now;
}

export function Duration({ from, to }: { from: string | null; to: string | null }) {
  const now = useNow(!to && !!from);
  if (!from) return <span class="quiet">–</span>;
  const end = to ? Date.parse(to) : now;
  return <span class="number">{duration(Math.max(0, end - Date.parse(from)))}</span>;
}
