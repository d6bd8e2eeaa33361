/** Notification rules: add, edit, test, delete; the messages that were sent. */
import { Fragment } from "preact";
import { useState } from "preact/hooks";
import { api, type Page } from "../common/api";
import { Button, EmptyState, ErrorState, Loading } from "../common/components";
import { useFetch } from "../common/fetch";
import { useHasRole } from "../common/session";
import { Time } from "../common/times";
import { DetailRow, List, ListHeader, RowButton, useEntryDialogs } from "./components";
import { DeliveryStatus } from "./deliveries";
import { NotificationForm, type Rule } from "./notification_form";

interface Message {
  id: string;
  status: string;
  on: string;
  title: string;
  received_at: string;
  attempts: number;
  answer: string | null;
  error: string | null;
}

const HEADS = ["Rule", "On", "To", "Playbooks"];
const route = (rule: Rule) => `/api/notifications/${encodeURIComponent(rule.name)}`;

export function Notifications() {
  const isAdmin = useHasRole("admin");
  const { value, problem, reload } = useFetch<Page<Rule>>("/api/notifications", { limit: 1000 }, 3000);
  const [open, setOpen] = useState<string | null>(null);
  const { act, dialogs, ...entries } = useEntryDialogs<Rule>({
    reload,
    called: (rule) => rule.name,
    route,
    warning: "Messages that are not sent yet are dropped.",
    form: (props) => <NotificationForm {...props} />,
  });
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading notifications" />;
  const add = isAdmin && (
    <Button kind="primary" onClick={entries.add}>
      Add notification rule
    </Button>
  );
  return (
    <>
      {!value.items.length ? (
        <EmptyState title="No notification rules yet" action={add}>
          <p>A rule sends a message (mail, Slack, HTTP) when executions fail, are late, wait or recover. From a terminal:</p>
          <pre tabIndex={0}>noetl notify add --help</pre>
        </EmptyState>
      ) : (
        <>
          <ListHeader words="Messages to people about executions and triggers.">{add}</ListHeader>
          <List heads={HEADS}>
            {value.items.map((each) => (
              <Fragment key={each.name}>
                <tr class={each.paused ? "paused" : ""}>
                  <td>
                    <strong>{each.name}</strong>
                    {each.paused && <div class="quiet">paused</div>}
                  </td>
                  <td>{each.on.map((word) => word.replace("_", " ")).join(", ")}</td>
                  <td>
                    {each.to.kind}
                    <div class="quiet">{each.to.kind === "mail" ? (each.to.to ?? []).join(", ") : (each.to.url ?? each.to.credential)}</div>
                  </td>
                  <td>{each.paths?.length && each.paths.join() !== "*" ? each.paths.join(", ") : "all"}</td>
                  <td class="right actions">
                    <RowButton action={open === each.name ? "Hide log" : "Log"} name={`of ${each.name}`} onClick={() => setOpen(open === each.name ? null : each.name)} />{" "}
                    {isAdmin && (
                      <>
                        <RowButton action="Test" name={each.name} onClick={() => act(() => api.post(`${route(each)}/test`), "Test message sent")} />{" "}
                        <RowButton action="Edit" name={each.name} onClick={() => entries.edit(each)} /> <RowButton action="Delete" name={each.name} kind="danger" onClick={() => entries.remove(each)} />
                      </>
                    )}
                  </td>
                </tr>
                {open === each.name && (
                  <DetailRow columns={HEADS.length}>
                    <Messages rule={each} />
                  </DetailRow>
                )}
              </Fragment>
            ))}
          </List>
        </>
      )}
      {dialogs}
    </>
  );
}

function Messages({ rule }: { rule: Rule }) {
  const { value, problem } = useFetch<Page<Message>>(`${route(rule)}/deliveries`, { limit: 50 }, 5000);
  if (problem && !value) return <p class="wrong">{problem.message}</p>;
  if (!value) return <Loading what="Loading messages" />;
  if (!value.items.length) return <p class="quiet">No message yet.</p>;
  return (
    <ul class="plain-list" aria-label={`Messages of ${rule.name}`}>
      {value.items.map((each) => (
        <li key={each.id}>
          <Time at={each.received_at} /> <DeliveryStatus status={each.status} /> {each.title}
          {each.attempts > 1 && <span class="quiet"> {each.attempts} attempts</span>}
          {(each.error ?? each.answer) && <div class={each.error ? "wrong" : "quiet"}>{each.error ?? each.answer}</div>}
        </li>
      ))}
    </ul>
  );
}
