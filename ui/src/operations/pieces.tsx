/** Pieces that the lists and forms of operations share. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Problem, type Page } from "../frame/api";
import { useFetched } from "../frame/fetched";
import { Button, Dialog, note, noteProblem } from "../frame/pieces";
import { Link } from "../frame/router";
import { placeOf, type Stored } from "../playbooks/playbook";

/** A field for the path of a playbook; those of the catalog are offered. */
export function PlaybookField({ id, value, onInput }: { id: string; value: string; onInput: (path: string) => void }) {
  const known = useFetched<Page<Stored>>("/api/catalog", { limit: 1000 });
  return <TextField id={id} label="Playbook" hint="a path in the catalog" value={value} onInput={onInput} offered={known.value?.items.map((each) => each.path) ?? []} />;
}

interface SureProps {
  title: string;
  action: string;
  onClose: () => void;
  onYes: () => void;
  children: ComponentChildren;
}

/** Asks before something is gone. */
export function Sure({ title, action, onClose, onYes, children }: SureProps) {
  return (
    <Dialog
      title={title}
      onClose={onClose}
      actions={
        <Button kind="danger" onClick={onYes}>
          {action}
        </Button>
      }
    >
      <p>{children}</p>
    </Dialog>
  );
}

/** Does something, says so (or what went wrong), and lets the list be read again. */
export const deedThen = (again: () => void) => async (deed: () => Promise<unknown>, words: string) => {
  try {
    await deed();
    note(words);
    again();
  } catch (error) {
    noteProblem(error);
  }
};

/** What a list says above itself, and its button. */
export function Above({ words, children }: { words: string; children: ComponentChildren }) {
  return (
    <div class="row spaced">
      <p class="quiet grow">{words}</p>
      {children}
    </div>
  );
}

/** A table in a card; the last column has the actions of a row. */
export function List({ heads, class: more = "", children }: { heads: ComponentChildren[]; class?: string; children: ComponentChildren }) {
  return (
    <div class="card scrolled">
      <table class={`list ${more}`}>
        <thead>
          <tr>
            {heads.map((head, at) => (
              <th key={at}>{head}</th>
            ))}
            <th>
              <span class="unseen">Actions</span>
            </th>
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

/** The name of something that starts a playbook, above the playbook. */
export function Starter({ name, path, version }: { name: string; path: string; version: number | null }) {
  return (
    <td>
      <strong>{name}</strong>
      <div>
        <Link to={placeOf(path)}>{path}</Link>
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

/** One line of text with its label; what is `offered` may be chosen or typed over. */
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

/** One of a few, by the words that say what it means. */
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

/** The words of whatever was thrown. */
export const wordsOf = (error: unknown) => (error instanceof Problem ? error.message : String(error));

interface FormProps {
  id: string;
  title: string;
  action: string;
  disabled?: boolean;
  onClose: () => void;
  /** Saves; gives what is wrong with the fields, if anything is. */
  onSave: () => Promise<string | void>;
  children: ComponentChildren;
}

/** A dialog with a form: what is wrong stands below the fields, which keep what was typed. */
export function FormDialog({ id, title, action, disabled, onClose, onSave, children }: FormProps) {
  const [wrong, setWrong] = useState("");
  const save = async (event: Event) => {
    event.preventDefault();
    setWrong("");
    try {
      setWrong((await onSave()) ?? "");
    } catch (error) {
      setWrong(wordsOf(error));
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
