/** The height of the graph above the tabs and the width of the side: dragged or changed with the keyboard; kept in this browser. */
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";

const KEY = "noetl.graph";
const LEAST = 120;
const MOST = 900;

const kept = (): { height: number | null; closed: boolean } => {
  try {
    return { height: null, closed: false, ...JSON.parse(read(KEY) ?? "{}") };
  } catch {
    return { height: null, closed: false };
  }
};

export function usePane(usual: number): { style: { height: string }; closed: boolean; handle: JSX.Element } {
  const [{ height, closed }, setPane] = useState(kept);
  const drag = useRef<{ from: number; height: number } | null>(null);
  const shown = height ?? usual;
  const change = (next: { height: number | null; closed: boolean }) => {
    setPane(next);
    write(KEY, JSON.stringify(next));
  };
  const limited = (value: number) => Math.max(LEAST, Math.min(MOST, value));
  const handle = (
    <div class="pane-handle">
      <div
        role="separator"
        aria-orientation="horizontal"
        aria-label="Height of the graph"
        aria-valuenow={closed ? 0 : shown}
        aria-valuemin={0}
        aria-valuemax={MOST}
        tabIndex={0}
        onPointerDown={(event) => {
          drag.current = { from: event.clientY, height: closed ? 0 : shown };
          event.currentTarget.setPointerCapture(event.pointerId);
        }}
        onPointerMove={(event) => drag.current && change({ height: limited(drag.current.height + event.clientY - drag.current.from), closed: false })}
        onPointerUp={() => (drag.current = null)}
        onDblClick={() => change({ height: null, closed: false })}
        onKeyDown={(event) => {
          const by = { ArrowDown: 24, ArrowUp: -24 }[event.key];
          if (by === undefined) return;
          event.preventDefault();
          change({ height: limited(shown + by), closed: false });
        }}
      />
      <button type="button" onClick={() => change({ height, closed: !closed })} aria-expanded={!closed}>
        {closed ? "Show graph" : "Hide graph"}
      </button>
    </div>
  );
  return { style: { height: `${shown}px` }, closed, handle };
}

const SIDE = "noetl.side";
const SIDE_USUAL = 320;
const SIDE_LEAST = 240;
const SIDE_MOST = 720;

/** The width of the side pane, and its handle. */
export function useSide(): { style: { "--side": string }; handle: JSX.Element } {
  const [width, setWidth] = useState(() => Number(read(SIDE)) || SIDE_USUAL);
  const drag = useRef<{ from: number; width: number } | null>(null);
  const change = (next: number) => {
    const limited = Math.max(SIDE_LEAST, Math.min(SIDE_MOST, Math.round(next)));
    setWidth(limited);
    write(SIDE, String(limited));
  };
  const handle = (
    <div
      class="side-handle"
      role="separator"
      aria-orientation="vertical"
      aria-label="Width of the side pane"
      aria-valuenow={width}
      aria-valuemin={SIDE_LEAST}
      aria-valuemax={SIDE_MOST}
      tabIndex={0}
      onPointerDown={(event) => {
        drag.current = { from: event.clientX, width };
        event.currentTarget.setPointerCapture(event.pointerId);
      }}
      onPointerMove={(event) => drag.current && change(drag.current.width + drag.current.from - event.clientX)}
      onPointerUp={() => (drag.current = null)}
      onDblClick={() => change(SIDE_USUAL)}
      onKeyDown={(event) => {
        const by = { ArrowLeft: 24, ArrowRight: -24 }[event.key];
        if (by === undefined) return;
        event.preventDefault();
        change(width + by);
      }}
    />
  );
  return { style: { "--side": `${width}px` }, handle };
}

function read(key: string): string | null {
  try {
    return window.localStorage.getItem(key);
  } catch {
    return null; // storage is not permitted
  }
}

function write(key: string, text: string) {
  try {
    window.localStorage.setItem(key, text);
  } catch {
    // not stored: applies until the page is closed
  }
}
