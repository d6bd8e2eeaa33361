/** Server-sent events over fetch: resumes after the last received id, with exponential backoff. */
import { address } from "./api";
import { reportReachable } from "./connection";

export type StreamState = "connecting" | "live" | "waiting" | "ended";

interface Listening {
  /** Path of the stream, below the prefix. */
  path: string;
  /** Start after this sequence number. */
  after?: number;
  onEvent: (data: any, id: number) => void;
  onState?: (state: StreamState) => void;
}

const MAX_PAUSE = 2000;
const HIDDEN_TIMEOUT = 15_000; // a hidden tab closes its connection after this time, as browsers allow six per server

/** Listen until stopped or until the server sends `event: end`; returns a function that stops. */
export function listen({ path, after = 0, onEvent, onState = () => {} }: Listening): () => void {
  const stopping = new AbortController();
  let connection = new AbortController();
  let last = after;
  let pause = 500;
  let unseen = 0;

  const seen = () => {
    clearTimeout(unseen);
    if (document.hidden) unseen = window.setTimeout(() => connection.abort(), HIDDEN_TIMEOUT);
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
    reportReachable(true);
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
      const check = () => {
        if (document.hidden && !stopping.signal.aborted) return;
        document.removeEventListener("visibilitychange", check);
        resolve();
      };
      document.addEventListener("visibilitychange", check);
      stopping.signal.addEventListener("abort", check);
      check();
    });

  void (async () => {
    onState("connecting");
    while (!stopping.signal.aborted) {
      try {
        if (await once()) {
          if (!stopping.signal.aborted) onState("ended");
          return;
        }
      } catch (error) {
        // the connection was closed, or the tab was hidden: resume after the last received event
        if (error instanceof TypeError) reportReachable(false);
      }
      if (stopping.signal.aborted) return;
      onState("waiting");
      if (document.hidden) await visible();
      else await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(pause * 2, MAX_PAUSE);
    }
  })();
  return () => stopping.abort();
}
