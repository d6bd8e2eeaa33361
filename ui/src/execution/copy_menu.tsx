/** Copies what other tools need: link, commands. */
import { useRef } from "preact/hooks";
import { Button } from "../common/components";
import { copyText } from "../common/copy";
import { pageUrl } from "../common/router";

export function CopyMenu({ id, path }: { id: string; path: string }) {
  const menu = useRef<HTMLDetailsElement>(null);
  const origin = window.location.origin;
  const entries: [string, string][] = [
    ["Link", origin + pageUrl(`/executions/${id}`)],
    ["noetl why", `noetl why ${id}`],
    ["noetl logs", `noetl logs ${id} --follow`],
    ["noetl rerun", `noetl rerun ${id}`],
    ["curl", `curl -H "Authorization: Bearer $NOETL_TOKEN" ${origin}${pageUrl(`/api/executions/${id}`)}`],
    ["Path of the playbook", path],
  ];
  return (
    <details class="menu" ref={menu} onKeyDown={(event) => event.key === "Escape" && menu.current?.removeAttribute("open")}>
      <summary class="button">Copy</summary>
      <ul>
        {entries.map(([label, text]) => (
          <li key={label}>
            <Button
              class="small"
              title={text}
              onClick={() => {
                menu.current?.removeAttribute("open");
                void copyText(text, label);
              }}
            >
              {label}
            </Button>
          </li>
        ))}
      </ul>
    </details>
  );
}
