/** A table of any length: only the visible rows are in the document. Sortable, with keyboard navigation. */
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { EmptyState } from "./components";

const MARGIN = 10;

export interface Column<R> {
  key: string;
  label: string;
  /** Width as a grid track: "90px", "minmax(120px, 1fr)". */
  width: string;
  render: (row: R) => ComponentChildren;
  /** The value by which rows are sorted; a column without it is not sortable. */
  sort?: (row: R) => number | string | null;
  right?: boolean;
}

interface Props<R> {
  label: string;
  rows: R[];
  columns: Column<R>[];
  idOf: (row: R) => string | number;
  open?: string | number | null;
  onOpen?: (row: R | null) => void;
  height?: number;
  empty?: string;
  /** Least width in pixels; a narrower frame scrolls. */
  width?: number;
}

export function VirtualTable<R>({ label, rows, columns, idOf, open = null, onOpen, height = 30, empty = "No rows", width = 560 }: Props<R>) {
  const frame = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [room, setRoom] = useState(400);
  const [cursor, setCursor] = useState(0);
  const [sorting, setSorting] = useState<{ key: string; down: boolean } | null>(null);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setRoom(entry.contentRect.height));
    watch.observe(frame.current!);
    return () => watch.disconnect();
  }, []);
  const sorted = useMemo(() => sort(rows, columns, sorting), [rows, sorting]);
  const first = Math.max(0, Math.floor(top / height) - MARGIN);
  const last = Math.min(sorted.length, Math.ceil((top + room) / height) + MARGIN);
  const tracks = { gridTemplateColumns: columns.map((each) => each.width).join(" ") };
  const toggle = (key: string) => setSorting((now) => (now?.key !== key ? { key, down: false } : now.down ? null : { key, down: true }));
  const onKey = (event: KeyboardEvent) => {
    if (event.target !== frame.current) return;
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12, Home: -sorted.length, End: sorted.length }[event.key];
    if (by !== undefined) {
      const next = Math.max(0, Math.min(sorted.length - 1, cursor + by));
      setCursor(next);
      const element = frame.current!;
      if (next * height < element.scrollTop) element.scrollTop = next * height;
      else if ((next + 2) * height > element.scrollTop + element.clientHeight) element.scrollTop = (next + 2) * height - element.clientHeight;
      event.preventDefault();
    } else if (event.key === "Enter" && onOpen && sorted[cursor] !== undefined) {
      onOpen(idOf(sorted[cursor]) === open ? null : sorted[cursor]);
      event.preventDefault();
    }
  };
  const shown = [];
  for (let at = first; at < last; at++) {
    const row = sorted[at];
    const id = idOf(row);
    shown.push(
      <div
        key={id}
        id={`row-${id}`}
        role="row"
        aria-rowindex={at + 2}
        aria-selected={open === id}
        class={`vt-row ${open === id ? "open" : ""} ${cursor === at ? "current" : ""}`}
        style={{ top: `${at * height}px`, height: `${height}px`, ...tracks }}
        onClick={(event) => {
          if ((event.target as HTMLElement).closest("a, button, input") || !onOpen) return;
          setCursor(at);
          onOpen(open === id ? null : row);
        }}
      >
        {columns.map((each) => (
          <span key={each.key} role="gridcell" class={each.right ? "right number" : ""}>
            {each.render(row)}
          </span>
        ))}
      </div>,
    );
  }
  return (
    <div
      class="vt-frame"
      ref={frame}
      style={{ height: `min(52vh, ${Math.max(3, sorted.length) * height + 34}px)` }}
      role="grid"
      aria-label={label}
      aria-rowcount={sorted.length + 1}
      tabIndex={0}
      aria-activedescendant={cursor >= first && cursor < last && sorted[cursor] !== undefined ? `row-${idOf(sorted[cursor])}` : undefined}
      onKeyDown={onKey}
      onScroll={(event) => setTop(event.currentTarget.scrollTop)}
    >
      <div class="vt-head" role="row" style={{ ...tracks, minWidth: `${width}px` }}>
        {columns.map((each) => (
          <span key={each.key} role="columnheader" class={each.right ? "right" : ""} aria-sort={sorting?.key === each.key ? (sorting.down ? "descending" : "ascending") : undefined}>
            {each.sort ? (
              <button type="button" onClick={() => toggle(each.key)} tabIndex={-1}>
                {each.label}
                {sorting?.key === each.key ? (sorting.down ? " ▾" : " ▴") : ""}
              </button>
            ) : (
              each.label
            )}
          </span>
        ))}
      </div>
      <div class="vt-space" role="rowgroup" style={{ height: `${sorted.length * height}px`, minWidth: `${width}px` }}>
        {shown}
      </div>
      {!sorted.length && <EmptyState title={empty} />}
    </div>
  );
}

function sort<R>(rows: R[], columns: Column<R>[], sorting: { key: string; down: boolean } | null): R[] {
  const value = columns.find((each) => each.key === sorting?.key)?.sort;
  if (!value || !sorting) return rows;
  const sign = sorting.down ? -1 : 1;
  const keyed = rows.map((row) => ({ row, key: value(row) }));
  keyed.sort((a, b) => {
    if (a.key === b.key) return 0;
    if (a.key === null) return 1; // rows without a value are last in both directions
    if (b.key === null) return -1;
    return a.key < b.key ? -sign : sign;
  });
  return keyed.map((each) => each.row);
}
