/** Actions on an execution: cancel, pause, resume, signal, rerun (also from a step), fork from the shown event. */
import { useState } from "preact/hooks";
import { api } from "../common/api";
import { Button, Dialog, notify, notifyProblem } from "../common/components";
import { RerunDialog } from "./rerun";
import type { Log } from "./log";
import { useHasRole } from "../common/session";
import { ENDED } from "../executions/data";

export type Asking = "cancel" | "signal" | "rerun" | "fork" | null;

interface Props {
  id: string;
  path: string;
  version: string | null;
  log: Log;
  status: string;
  steps: string[];
  from: string | null;
  /** The shown event; null: the end of the log. */
  at: number | null;
  asking: Asking;
  setAsking: (asking: Asking) => void;
}

export function Actions({ id, path, version, log, status, steps, from, at, asking, setAsking }: Props) {
  const canOperate = useHasRole("operator");
  if (!canOperate) return <span class="quiet">Read-only: actions require the role operator.</span>;
  const ended = ENDED.has(status);
  const act = async (what: string, body: unknown, message: string) => {
    try {
      await api.post(`/api/executions/${id}/${what}`, body);
      notify(message);
      setAsking(null);
    } catch (error) {
      notifyProblem(error);
    }
  };
  const close = () => setAsking(null);
  return (
    <div class="row actions">
      {!ended && status !== "paused" && <Button onClick={() => act("pause", {}, "Paused: running steps continue, no new steps start")}>Pause</Button>}
      {!ended && status === "paused" && (
        <Button kind="primary" onClick={() => act("resume", {}, "Resumed")}>
          Resume
        </Button>
      )}
      {!ended && <Button onClick={() => setAsking("signal")}>Signal</Button>}
      {at !== null && (
        <Button title={`Start a new execution from event ${at}`} onClick={() => setAsking("fork")}>
          Fork
        </Button>
      )}
      <Button onClick={() => setAsking("rerun")}>Rerun</Button>
      {!ended && (
        <Button kind="danger" onClick={() => setAsking("cancel")}>
          Cancel
        </Button>
      )}
      {asking === "cancel" && <CancelDialog close={close} act={(reason) => act("cancel", { reason }, "Cancelled")} />}
      {asking === "signal" && <SignalDialog close={close} act={(name, payload) => act("signal", { name, payload }, "Signal sent")} />}
      {(asking === "rerun" || asking === "fork") && <RerunDialog key={id} id={id} path={path} version={version} log={log} steps={steps} from={from} at={asking === "fork" ? at : null} close={close} />}
    </div>
  );
}

function CancelDialog({ close, act }: { close: () => void; act: (reason: string) => void }) {
  const [reason, setReason] = useState("");
  return (
    <Dialog
      title="Cancel this execution?"
      onClose={close}
      actions={
        <Button kind="danger" onClick={() => act(reason)}>
          Cancel execution
        </Button>
      }
    >
      <p>Running steps and child executions are stopped. This cannot be undone; the execution can be rerun, also from a step.</p>
      <label for="reason">Reason (recorded in the log)</label>
      <input id="reason" type="text" maxLength={2000} value={reason} onInput={(event) => setReason(event.currentTarget.value)} />
    </Dialog>
  );
}

function SignalDialog({ close, act }: { close: () => void; act: (name: string, payload: Record<string, unknown>) => void }) {
  const [name, setName] = useState("");
  const [text, setText] = useState('{\n  "approved": true\n}');
  const { value, wrong } = parsed(text);
  return (
    <Dialog
      title="Send signal"
      onClose={close}
      actions={
        <Button kind="primary" disabled={!!wrong} onClick={() => act(name, value!)}>
          Send
        </Button>
      }
    >
      <p>
        The payload is merged into <code>ctx</code>; waiting tokens are evaluated again.
      </p>
      <label for="signal-name">Name</label>
      <input id="signal-name" type="text" value={name} onInput={(event) => setName(event.currentTarget.value)} />
      <JsonBox id="signal-payload" label="Payload (JSON object)" text={text} setText={setText} wrong={wrong} />
    </Dialog>
  );
}

function JsonBox({ id, label, text, setText, wrong }: { id: string; label: string; text: string; setText: (text: string) => void; wrong: string }) {
  return (
    <>
      <label for={id}>{label}</label>
      <textarea id={id} rows={5} spellcheck={false} value={text} aria-invalid={wrong ? "true" : undefined} onInput={(event) => setText(event.currentTarget.value)} />
      {wrong && <p class="wrong">{wrong}</p>}
    </>
  );
}

function parsed(text: string): { value: Record<string, unknown> | null; wrong: string } {
  try {
    const value = JSON.parse(text);
    if (value === null || typeof value !== "object" || Array.isArray(value)) return { value: null, wrong: "must be an object: { … }" };
    return { value, wrong: "" };
  } catch (error) {
    return { value: null, wrong: `invalid JSON: ${(error as Error).message}` };
  }
}
