/** Components shared by the lists and forms of operations. */
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { api, Problem, type Page } from "../common/api";
import { useFetch } from "../common/fetch";
import { Button, Dialog, notify, notifyProblem } from "../common/components";
import { Link } from "../common/router";
import { pagePath, type Stored } from "../playbooks/playbook";

/** A field for the path of a playbook, with suggestions from the catalog. */
export function PlaybookField({ id, value, onInput }: { id: string; value: string; onInput: (path: string) => void }) {
  const known = useFetch<Page<Stored>>("/api/catalog", { limit: 1000 });
  return <TextField id={id} label="Playbook" hint="path in the catalog" value={value} onInput={onInput} offered={known.value?.items.map((each) => each.path) ?? []} />;
}

interface ConfirmDialogProps {
  title: string;
  action: string;
  onClose: () => void;
  onConfirm: () => void;
  children: ComponentChildren;
}

/** Asks for confirmation. */
export function ConfirmDialog({ title, action, onClose, onConfirm, children }: ConfirmDialogProps) {
  return (
    <Dialog
      title={title}
      onClose={onClose}
      actions={
        <Button kind="danger" onClick={onConfirm}>
          {action}
        </Button>
      }
    >
      <p>{children}</p>
    </Dialog>
  );
}

/** A small button of a row; its accessible name also says which row. */
export function RowButton({ action, name, kind, onClick }: { action: string; name: string; kind?: "danger"; onClick: () => void }) {
  return (
    <Button class="small" kind={kind} aria-label={`${action} ${name}`} onClick={onClick}>
      {action}
    </Button>
  );
}

/** Details of a row in a row of their own, as wide as the table. */
export function DetailRow({ columns, children }: { columns: number; children: ComponentChildren }) {
  return (
    <tr class="detail">
      <td colSpan={columns + 1}>{children}</td>
    </tr>
  );
}

export interface FormProps<T> {
  /** The entry that is edited; null adds one. */
  known: T | null;
  onClose: () => void;
  /** Close the form, show the message and load the list again. */
  onDone: (message: string) => void;
}

interface DialogOptions<T> {
  reload: () => void;
  called: (entry: T) => string;
  route: (entry: T) => string;
  /** What deleting an entry causes. */
  warning: string;
  form: (props: FormProps<T>) => ComponentChildren;
}

/** The form and the confirmation of a list whose entries are added, edited and deleted; `dialogs` belongs below the list. */
export function useEntryDialogs<T>({ reload, called, route, warning, form }: DialogOptions<T>) {
  const [editing, setEditing] = useState<T | "new" | null>(null);
  const [removing, setRemoving] = useState<T | null>(null);
  const act = actThenReload(reload);
  const remove = (entry: T) => {
    setRemoving(null);
    void act(() => api.delete(route(entry)), `Deleted ${called(entry)}`);
  };
  const onClose = () => setEditing(null);
  const onDone = (message: string) => {
    onClose();
    notify(message);
    reload();
  };
  const dialogs = (
    <>
      {editing !== null && form({ known: editing === "new" ? null : editing, onClose, onDone })}
      {removing !== null && (
        <ConfirmDialog title={`Delete ${called(removing)}?`} action="Delete" onClose={() => setRemoving(null)} onConfirm={() => remove(removing)}>
          {warning}
        </ConfirmDialog>
      )}
    </>
  );
  return { act, add: () => setEditing("new"), edit: (entry: T) => setEditing(entry), remove: (entry: T) => setRemoving(entry), dialogs };
}

/** Run an action, notify about the result, and reload the list. */
export const actThenReload = (reload: () => void) => async (action: () => Promise<unknown>, words: string) => {
  try {
    await action();
    notify(words);
    reload();
  } catch (error) {
    notifyProblem(error);
  }
};

/** The text and the button above a list. */
export function ListHeader({ words, children }: { words: string; children: ComponentChildren }) {
  return (
    <div class="row spaced">
      <p class="quiet grow">{words}</p>
      {children}
    </div>
  );
}

/** A table in a card; its last column has the actions of a row. On a narrow screen every cell has the label of its column. */
export function List({ heads, class: more = "", actions = true, children }: { heads: string[]; class?: string; actions?: boolean; children: ComponentChildren }) {
  const body = useRef<HTMLTableSectionElement>(null);
  useLayoutEffect(() => {
    for (const row of body.current?.rows ?? []) {
      if (!row.classList.contains("detail")) heads.slice(1).forEach((head, at) => (row.cells[at + 1].dataset.label = head));
    }
  });
  return (
    <div class="card scrolled">
      <table class={`list stacked ${more}`}>
        <thead>
          <tr>
            {heads.map((head, at) => (
              <th key={at}>{head}</th>
            ))}
            {actions && (
              <th>
                <span class="unseen">Actions</span>
              </th>
            )}
          </tr>
        </thead>
        <tbody ref={body}>{children}</tbody>
      </table>
    </div>
  );
}

/** Table cell with the name of a schedule or webhook and its playbook. */
export function NameCell({ name, path, version }: { name: string; path: string; version: number | null }) {
  return (
    <td>
      <strong>{name}</strong>
      <div>
        <Link to={pagePath(path)}>{path}</Link>
        {version !== null && <span class="quiet number"> v{version}</span>}
      </div>
    </td>
  );
}

interface FieldProps {
  id: string;
  label: string;
  hint?: string;
  value: string;
  onInput: (text: string) => void;
  disabled?: boolean;
  offered?: string[];
  class?: string;
}

/** A text input with a label and optional suggestions. */
export function TextField({ id, label, hint, value, onInput, disabled, offered, class: more = "" }: FieldProps) {
  return (
    <div class={more}>
      <label for={id}>
        {label} {hint && <span class="quiet">({hint})</span>}
      </label>
      <input id={id} type="text" list={offered && `${id}s`} value={value} spellcheck={false} disabled={disabled} onInput={(event) => onInput(event.currentTarget.value)} />
      {offered && (
        <datalist id={`${id}s`}>
          {offered.map((each) => (
            <option key={each} value={each} />
          ))}
        </datalist>
      )}
    </div>
  );
}

interface ChoiceProps {
  id: string;
  label: string;
  value: string;
  onChange: (key: string) => void;
  choices: Record<string, string>;
}

/** A select with labels. */
export function Choice({ id, label, value, onChange, choices }: ChoiceProps) {
  return (
    <div>
      <label for={id}>{label}</label>
      <select id={id} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        {Object.entries(choices).map(([key, words]) => (
          <option key={key} value={key}>
            {words}
          </option>
        ))}
      </select>
    </div>
  );
}

/** A check box with its label. */
export function CheckField({ id, label, value, onChange }: { id: string; label: string; value: boolean; onChange: (value: boolean) => void }) {
  return (
    <label class="check" for={id}>
      <input id={id} type="checkbox" checked={value} onChange={(event) => onChange(event.currentTarget.checked)} />
      {label}
    </label>
  );
}

/** A field for YAML or JSON. */
export function PayloadField({ id, label = "Payload", hint = "YAML or JSON, merged into the workload", value, onInput }: { id: string; label?: string; hint?: string; value: string; onInput: (text: string) => void }) {
  return (
    <div class="whole">
      <label for={id}>
        {label} <span class="quiet">({hint})</span>
      </label>
      <textarea id={id} rows={Math.min(8, Math.max(2, value.split("\n").length))} spellcheck={false} value={value} onInput={(event) => onInput(event.currentTarget.value)} />
    </div>
  );
}

/** The value of YAML or JSON text, read by the server. */
export async function readValue(text: string): Promise<{ value: unknown; problem?: string }> {
  const read = await api.post<{ values: Record<string, unknown>; problems: Record<string, string> }>("/api/values", { texts: { text } });
  return { value: read.values.text, problem: read.problems.text };
}

/** The mapping of YAML or JSON text; a string is the error. */
export async function readMapping(label: string, text: string): Promise<Record<string, unknown> | string> {
  if (!text.trim()) return {};
  const { value, problem } = await readValue(text);
  if (problem) return `${label}: ${problem}`;
  return value !== null && typeof value === "object" && !Array.isArray(value) ? (value as Record<string, unknown>) : `${label} must be a mapping.`;
}

/** The message of an error. */
export const messageOf = (error: unknown) => (error instanceof Problem ? error.message : String(error));

interface FormDialogProps {
  id: string;
  title: string;
  action: string;
  disabled?: boolean;
  onClose: () => void;
  /** Save; returns a validation error, if any. */
  onSave: () => Promise<string | void>;
  children: ComponentChildren;
}

/** A dialog with a form; errors are shown below the fields. */
export function FormDialog({ id, title, action, disabled, onClose, onSave, children }: FormDialogProps) {
  const [wrong, setWrong] = useState("");
  const save = async (event: Event) => {
    event.preventDefault();
    setWrong("");
    try {
      setWrong((await onSave()) ?? "");
    } catch (error) {
      setWrong(messageOf(error));
    }
  };
  return (
    <Dialog
      title={title}
      onClose={onClose}
      actions={
        <Button kind="primary" type="submit" form={id} disabled={disabled}>
          {action}
        </Button>
      }
    >
      <form id={id} class="fields" onSubmit={save} autocomplete="off" noValidate>
        {children}
        {wrong && (
          <p class="wrong" role="alert">
            {wrong}
          </p>
        )}
      </form>
    </Dialog>
  );
}
