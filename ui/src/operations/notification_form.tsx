/** The form of a notification rule. */
import { useState } from "preact/hooks";
import { api } from "../common/api";
import { CheckField, Choice, FormDialog, TextField, type FormProps } from "./components";

export interface Rule {
  name: string;
  on: string[];
  to: { kind: string; [more: string]: any };
  paths?: string[];
  labels?: Record<string, string>;
  group?: number;
  answer_url?: string;
  paused?: boolean;
}

const OCCURRENCES: [string, string][] = [
  ["failed", "an execution fails"],
  ["late", "a scheduled execution is late"],
  ["waiting", "an execution waits for an answer"],
  ["recovered", "a playbook succeeds after a failure"],
  ["dead_trigger", "a trigger cannot receive anything"],
];
const CHANNELS: Record<string, string> = { mail: "mail", slack: "Slack (webhook)", http: "HTTP request" };

const EVENT = "event:";
const isEvent = (on: string) => on.startsWith(EVENT);
const split = (text: string) => text.split(",").map((each) => each.trim()).filter(Boolean);

export function NotificationForm({ known, onClose, onDone }: FormProps<Rule>) {
  const [name, setName] = useState(known?.name ?? "");
  const [on, setOn] = useState<string[]>(known?.on.filter((each) => !isEvent(each)) ?? ["failed"]);
  const [events, setEvents] = useState((known?.on ?? []).filter(isEvent).map((each) => each.slice(EVENT.length)).join(", "));
  const [kind, setKind] = useState(known?.to.kind ?? "mail");
  const [recipients, setRecipients] = useState<string>((known?.to.to ?? []).join(", "));
  const [sender, setSender] = useState<string>(known?.to.from ?? "");
  const [url, setUrl] = useState<string>(known?.to.url ?? "");
  const [credential, setCredential] = useState<string>(known?.to.credential ?? "");
  const [paths, setPaths] = useState((known?.paths ?? ["*"]).join(", "));
  const [group, setGroup] = useState(`${known?.group ?? 60}`);
  const [answer, setAnswer] = useState(known?.answer_url ?? "");

  const save = async () => {
    if (!name.trim()) return "Enter a name.";
    const wanted = [...on, ...split(events).map((each) => EVENT + each)];
    if (!wanted.length) return "Choose at least one occurrence.";
    if (!/^\d+(\.\d+)?$/.test(group.trim())) return "The time of grouping is a number of seconds.";
    const to: Record<string, unknown> =
      kind === "mail"
        ? { kind, to: split(recipients), credential: credential.trim(), ...(sender.trim() ? { from: sender.trim() } : {}) }
        : kind === "slack"
          ? { kind, credential: credential.trim() }
          : { ...(known?.to.kind === "http" ? known.to : {}), kind, url: url.trim(), ...(credential.trim() ? { credential: credential.trim() } : {}) };
    if (kind === "mail" && !split(recipients).length) return "Enter at least one recipient.";
    const body: Record<string, unknown> = { on: wanted, to, paths: split(paths).length ? split(paths) : ["*"], group: Number(group) };
    if (answer.trim()) body.answer_url = answer.trim();
    if (known?.labels && Object.keys(known.labels).length) body.labels = known.labels;
    if (known?.paused) body.paused = true;
    await api.put(`/api/notifications/${encodeURIComponent(name.trim())}`, body);
    onDone(`Saved ${name.trim()}`);
  };

  return (
    <FormDialog id="notification-form" title={known ? `Edit ${known.name}` : "Add notification rule"} action="Save" onClose={onClose} onSave={save}>
      <div class="pair">
        <TextField id="rule-name" label="Name" value={name} disabled={!!known} onInput={setName} />
        <TextField id="rule-paths" label="Playbooks" hint="patterns: reports/*" value={paths} onInput={setPaths} />
      </div>
      <fieldset>
        <legend>Send a message when</legend>
        {OCCURRENCES.map(([key, words]) => (
          <CheckField key={key} id={`rule-on-${key}`} label={words} value={on.includes(key)} onChange={(value) => setOn(value ? [...on, key] : on.filter((each) => each !== key))} />
        ))}
        <TextField id="rule-events" class="whole" label="Custom events" hint="names or patterns: order_paid, order_*" value={events} onInput={setEvents} />
      </fieldset>
      <div class="pair">
        <Choice id="rule-kind" label="Channel" value={kind} onChange={setKind} choices={CHANNELS} />
        <TextField id="rule-credential" label="Credential" hint={kind === "http" ? "optional" : kind === "slack" ? "has the address in url" : "of the mail server"} value={credential} onInput={setCredential} />
      </div>
      {kind === "mail" && (
        <div class="pair">
          <TextField id="rule-to" label="To" hint="separated by commas" value={recipients} onInput={setRecipients} />
          <TextField id="rule-from" label="From" hint="default: that of the credential" value={sender} onInput={setSender} />
        </div>
      )}
      {kind === "http" && <TextField id="rule-url" class="whole" label="Address" value={url} onInput={setUrl} />}
      <div class="pair">
        <TextField id="rule-group" label="Group for" hint="seconds; one message" value={group} onInput={setGroup} />
        <TextField id="rule-answer" label="Address of this server" hint="for answer links" value={answer} onInput={setAnswer} />
      </div>
    </FormDialog>
  );
}
