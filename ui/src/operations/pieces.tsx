/** Pieces that schedules, webhooks and credentials share. */
import type { ComponentChildren } from "preact";
import type { Page } from "../frame/api";
import { useFetched } from "../frame/fetched";
import { Button, Dialog } from "../frame/pieces";
import type { Stored } from "../playbooks/playbook";

/** A field for the path of a playbook; those of the catalogue are offered. */
export function PlaybookField({ id, value, onInput }: { id: string; value: string; onInput: (path: string) => void }) {
  const known = useFetched<Page<Stored>>("/api/catalog", { limit: 1000 });
  return (
    <div>
      <label for={id}>Playbook</label>
      <input id={id} type="text" list={`${id}s`} value={value} spellcheck={false} placeholder="path in the catalogue" onInput={(event) => onInput(event.currentTarget.value)} />
      <datalist id={`${id}s`}>
        {known.value?.items.map((each) => (
          <option key={each.path} value={each.path} />
        ))}
      </datalist>
    </div>
  );
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
