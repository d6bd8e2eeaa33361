/** Components that all pages use: buttons, statuses, empty and error states, dialogs, notifications. */
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Problem } from "./api";
import { useReachable } from "./connection";

type ButtonProps = Omit<JSX.IntrinsicElements["button"], "kind"> & { kind?: "primary" | "danger" | "plain" };

export function Button({ kind = "plain", class: more, ...rest }: ButtonProps) {
  return <button type="button" class={`button ${kind} ${more ?? ""}`} {...rest} />;
}

export function Logo() {
  return (
    <svg class="logo" viewBox="0 0 32 32" width="26" height="26" aria-hidden="true">
      <rect width="32" height="32" rx="8" fill="var(--accent)" />
      <path d="M9 16L23 9.5M9 16l14 6.5" stroke="var(--on-accent)" stroke-width="2" />
      <circle cx="9" cy="16" r="3.5" fill="var(--on-accent)" />
      <circle cx="23" cy="9.5" r="3.5" fill="var(--on-accent)" />
      <circle cx="23" cy="22.5" r="3.5" fill="var(--on-accent)" />
    </svg>
  );
}

export const STATUS_LABELS: Record<string, string> = {
  pending: "pending",
  running: "running",
  paused: "paused",
  waiting: "waiting",
  parked: "waiting",
  success: "success",
  done: "done",
  failed: "failed",
  cancelled: "cancelled",
  skipped: "skipped",
};

/** A status as a coloured dot and a label. */
export function Status({ status }: { status: string }) {
  return (
    <span class={`status ${status}`}>
      <i aria-hidden="true" />
      {STATUS_LABELS[status] ?? status}
    </span>
  );
}

/** Placeholder for an empty list: a title, an explanation and an action. */
export function EmptyState({ title, children, action }: { title: string; children?: ComponentChildren; action?: ComponentChildren }) {
  return (
    <div class="state">
      <h2>{title}</h2>
      {children}
      {action && <p>{action}</p>}
    </div>
  );
}

/** An error with an optional retry button. */
export function ErrorState({ problem, retry }: { problem: unknown; retry?: () => void }) {
  const shown = problem instanceof Problem ? problem : new Problem(-1, "Unexpected error", String(problem));
  return (
    <div class="state error" role="alert">
      <h2>{shown.title}</h2>
      <p>{shown.detail}</p>
      {shown.status === 403 && <p class="quiet">Your role does not permit this. Sign in with another token.</p>}
      {retry && <Button onClick={retry}>Retry</Button>}
    </div>
  );
}

/** A banner over data that may be outdated, while the server is unreachable. */
export function Unreachable() {
  if (useReachable()) return null;
  return (
    <p class="banner" role="status">
      Server unreachable. What is shown may be outdated; the page reconnects automatically.
    </p>
  );
}

export function Loading({ what = "Loading" }: { what?: string }) {
  const [slow, setSlow] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setSlow(true), 250);
    return () => clearTimeout(timer);
  }, []);
  return (
    <p class="loading quiet" role="status">
      {slow ? `${what} …` : ""}
    </p>
  );
}

/** Focus the first field of a form, or its main button; false if it has neither. */
export function focusField(inside: HTMLElement | null | undefined): boolean {
  const fields = "input:not([type=hidden]):not(:disabled), textarea, select";
  const found = inside?.querySelector<HTMLElement>(fields) ?? inside?.querySelector<HTMLElement>(".button.primary, .button.danger");
  found?.focus();
  return !!found;
}

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  actions?: ComponentChildren;
  wide?: boolean;
}

/** A modal dialog; Escape and a click on the backdrop close it, and focus is restored.
 *
 * The focus is on the first field; without a field it is on the dialog itself, so that Enter never presses "Close". A
 * form that is loaded later calls `focusField`. */
export function Dialog({ title, onClose, children, actions, wide = false }: DialogProps) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    element.current?.showModal();
    if (!focusField(element.current)) element.current?.focus();
  }, []);
  return (
    <dialog
      ref={element}
      class={wide ? "wide" : ""}
      aria-label={title}
      tabIndex={-1}
      onClose={onClose}
      onClick={(event) => event.target === element.current && element.current?.close()}
    >
      <div class="dialog">
        <h2>{title}</h2>
        {children}
        <div class="row end">
          {actions}
          <Button onClick={() => element.current?.close()}>Close</Button>
        </div>
      </div>
    </dialog>
  );
}

/** Tabs with arrow-key navigation; the caller controls the selection. Where they do not fit, the selected one is scrolled into view. */
export function Tabs<T extends string>({ tabs, value, onChange, label, id = "" }: { tabs: [T, ComponentChildren][]; value: T; onChange: (tab: T) => void; label: string; id?: string }) {
  const prefix = id ? `${id}-` : "";
  const list = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const chosen = list.current?.querySelector<HTMLElement>("[aria-selected=true]");
    if (chosen) list.current!.scrollLeft = chosen.offsetLeft - (list.current!.clientWidth - chosen.offsetWidth) / 2;
  }, [value]);
  const step = (event: KeyboardEvent, by: number) => {
    const at = tabs.findIndex(([key]) => key === value);
    onChange(tabs[(at + by + tabs.length) % tabs.length][0]);
    const buttons = (event.currentTarget as HTMLElement).querySelectorAll<HTMLElement>("[role=tab]");
    buttons[(at + by + tabs.length) % tabs.length]?.focus();
    event.preventDefault();
  };
  return (
    <div
      ref={list}
      role="tablist"
      aria-label={label}
      class="tabs"
      onKeyDown={(event) => {
        if (event.key === "ArrowRight") step(event, 1);
        if (event.key === "ArrowLeft") step(event, -1);
      }}
    >
      {tabs.map(([key, label]) => (
        <button
          key={key}
          id={`tab-${prefix}${key}`}
          role="tab"
          type="button"
          aria-selected={key === value}
          aria-controls={key === value ? `panel-${prefix}${key}` : undefined}
          tabIndex={key === value ? 0 : -1}
          onClick={() => onChange(key)}
        >
          {label}
        </button>
      ))}
    </div>
  );
}

interface Note {
  id: number;
  text: string;
  bad: boolean;
}
let show: (note: Note) => void = () => {};
let counter = 0;

/** Show a notification for a few seconds at the bottom of the page. */
export function notify(text: string, { bad = false } = {}) {
  show({ id: ++counter, text, bad });
}

/** Show the error of a failed action. */
export const notifyProblem = (error: unknown) => notify(error instanceof Error ? error.message : String(error), { bad: true });

export function Notes() {
  const [notes, setNotes] = useState<Note[]>([]);
  useEffect(() => {
    show = (one) => {
      setNotes((all) => [...all.slice(-3), one]);
      setTimeout(() => setNotes((all) => all.filter((each) => each.id !== one.id)), one.bad ? 9000 : 4500);
    };
  }, []);
  return (
    <div class="notes" role="status" aria-live="polite">
      {notes.map((each) => (
        <p key={each.id} class={each.bad ? "bad" : ""}>
          {each.text}
        </p>
      ))}
    </div>
  );
}
