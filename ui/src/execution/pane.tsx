/** The height of the graph above the tabs: dragged, changed with the keyboard, closed; kept in this browser. */
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";

const KEY = "noetl.graph";
const LEAST = 120;
const MOST = 900;

const kept = (): { height: number | null; closed: boolean } => {
  try {
    return { height: null, closed: false, ...JSON.parse(window.localStorage.getItem(KEY) ?? "{}") };
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
    try {
      window.localStorage.setItem(KEY, JSON.stringify(next));
    } catch {
      // not stored: applies until the page is closed
    }
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
