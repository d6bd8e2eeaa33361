/** Whether the server is reachable. Every request reports it; `/healthz` is requested where a page sends no other request, and
 * more often while the server is unreachable. When it responds again, pages load their data again. */
import { useEffect, useState } from "preact/hooks";
import { prefix } from "./router";

const IDLE = 4000; // ms without a request after which /healthz is requested
const LOST = 1000; // the same while the server is unreachable

let reachable = true;
let reported = Date.now();
const listeners = new Set<(reachable: boolean) => void>();

export function reportReachable(now: boolean) {
  reported = Date.now();
  if (now === reachable) return;
  reachable = now;
  listeners.forEach((each) => each(now));
}

async function ping() {
  if (document.hidden || Date.now() - reported < (reachable ? IDLE : LOST)) return;
  try {
    reportReachable((await fetch(`${prefix}/healthz`, { cache: "no-store" })).ok);
  } catch {
    reportReachable(false);
  }
}
setInterval(ping, LOST);

/** Call `listener` whenever the server becomes reachable or unreachable; returns a function that stops it. */
export function onReachable(listener: (reachable: boolean) => void): () => void {
  listeners.add(listener);
  return () => void listeners.delete(listener);
}

export function useReachable(): boolean {
  const [value, setValue] = useState(reachable);
  useEffect(() => onReachable(setValue), []);
  return value;
}
