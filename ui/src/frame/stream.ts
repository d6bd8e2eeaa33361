/** Server-sent events over fetch: resumes after the last id it saw, waits longer after each failure. */
import { address } from "./api";

export type StreamState = "connecting" | "live" | "waiting" | "ended";

interface Listening {
  /** Path of the stream, below the prefix. */
  path: string;
  /** Seq after which to begin. */
  after?: number;
  onEvent: (data: any, id: number) => void;
  onState?: (state: StreamState) => void;
}

const LONGEST = 8000;
const UNSEEN = 15_000; // a tab that nobody sees gives its connection back after this long: a browser has six per server

/** Listen until stopped or until the server says `event: end`; returns the way to stop. */
export function listen({ path, after = 0, onEvent, onState = () => {} }: Listening): () => void {
  const stopping = new AbortController();
  let connection = new AbortController();
  let last = after;
  let pause = 500;
  let unseen = 0;

  const seen = () => {
    clearTimeout(unseen);
    if (document.hidden) unseen = window.setTimeout(() => connection.abort(), UNSEEN);
  };
  document.addEventListener("visibilitychange", seen);
  stopping.signal.addEventListener("abort", () => {
    document.removeEventListener("visibilitychange", seen);
    clearTimeout(unseen);
    connection.abort();
  });

  const once = async () => {
    connection = new AbortController();
    const response = await fetch(address(path, { after: last }), {
      credentials: "same-origin",
      headers: { Accept: "text/event-stream", ...(last ? { "Last-Event-ID": String(last) } : {}) },
      signal: connection.signal,
      cache: "no-store",
    });
    if (!response.ok || !response.body) {
      if (response.status === 401 || response.status === 403 || response.status === 404) return true;
      throw new Error(String(response.status));
    }
    onState("live");
    pause = 500;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let held = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return false;
      held += value;
      let cut: number;
      while ((cut = held.indexOf("\n\n")) >= 0) {
        const block = held.slice(0, cut);
        held = held.slice(cut + 2);
        let name = "message";
        let data = "";
        let id = 0;
        for (const line of block.split("\n")) {
          if (line.startsWith("data:")) data += line.slice(5).trimStart();
          else if (line.startsWith("event:")) name = line.slice(6).trim();
          else if (line.startsWith("id:")) id = Number(line.slice(3));
        }
        if (name === "end") return true;
        if (!data) continue;
        if (id) last = id;
        onEvent(JSON.parse(data), id);
      }
    }
  };

  const visible = () =>
    new Promise<void>((resolve) => {
      const look = () => {
        if (document.hidden && !stopping.signal.aborted) return;
        document.removeEventListener("visibilitychange", look);
        resolve();
      };
      document.addEventListener("visibilitychange", look);
      stopping.signal.addEventListener("abort", look);
      look();
    });

  void (async () => {
    onState("connecting");
    while (!stopping.signal.aborted) {
      try {
        if (await once()) {
          if (!stopping.signal.aborted) onState("ended");
          return;
        }
      } catch {
        // the connection broke, or the tab was not seen: go on after the last event that arrived
      }
      if (stopping.signal.aborted) return;
      onState("waiting");
      if (document.hidden) await visible();
      else await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(pause * 2, LONGEST);
    }
  })();
  return () => stopping.abort();
}
