import type { Ledger } from '../../../db/Ledger'
import type { Message } from '../../../db/webhooks'
import { dayMs } from '../../protocol/Time'
import { CommandError } from '../Command'
import type { Run } from '../commands'
import { poll } from '../poll'
import { withLedger } from './database'

/** Messages of each state that `list` shows. */
const listed = 20

/**
 * Shows the messages of webhooks to the operator, while a service may be running. `resend` makes a
 * message due again: the service sends it within seconds, or after its next start. Returns the exit
 * code: 1 when there is no such message, or when it was not delivered yet. `waitMs`: how
 * long it waits for a running service to send.
 */
export function webhooks(options: Run<'webhooks'>, waitMs = 15_000): Promise<number> {
  return withLedger(options, (ledger) =>
    options.verb === 'list' ? list(ledger, options) : resend(ledger, options, waitMs),
  )
}

async function list({ webhooks }: Ledger, { out }: Run<'webhooks'>): Promise<number> {
  const messages = await webhooks.list(listed)
  for (const message of messages) out(lineOf(message))
  const waiting = [...(await webhooks.countWaiting()).values()].reduce((sum, each) => sum + each, 0)
  out(`${waiting} waiting; the newest ${listed} of each state are shown`)
  return 0
}

function lineOf(message: Message): string {
  const { id, state, type, subject, origin, attempts, createdAt, dueAt } = message
  const { lastStatus, lastError } = message
  const status = lastStatus === null ? '' : `status ${lastStatus}`
  const next = state === 'waiting' ? `next ${new Date(dueAt).toISOString()}` : ''
  const columns = [
    id,
    state.padEnd(9),
    type.padEnd(17),
    subject,
    origin,
    new Date(createdAt).toISOString(),
    attempts === 1 ? '1 attempt' : `${attempts} attempts`,
    // The last answer, or why there is none or no further attempt.
    [status, lastError ?? ''].filter((part) => part !== '').join(' '),
    next,
  ]
  return columns.filter((column) => column !== '').join('  ')
}

const noEffect = `No effect yet: no service is running, its file no longer has this endpoint, the endpoint
is paused after failures, or an older message about the same subject waits. It stays due.`

async function resend(
  { webhooks }: Ledger,
  { operand: id, now, out }: Run<'webhooks'>,
  waitMs: number,
): Promise<number> {
  const at = now()
  const before = await webhooks.resend(id, { at, expiresAt: at + dayMs })
  if (before === undefined)
    throw new CommandError(`there is no message ${id}: see turnpike webhooks list`)
  const isTried = (current: Message | undefined) =>
    current?.state !== 'waiting' || current.attempts > before.attempts
  const current = await poll({ now, waitMs }, () => webhooks.find(id), isTried)
  if (current === undefined) return 1
  out(isTried(current) ? lineOf(current) : noEffect)
  return current.state === 'delivered' ? 0 : 1
}
