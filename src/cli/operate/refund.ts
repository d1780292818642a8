import type { Ledger } from '../../../db/Ledger'
import type { Refund } from '../../../db/Refund'
import { findRefundKey } from '../../config/env'
import * as Amount from '../../protocol/Amount'
import * as Crypto from '../../protocol/Crypto'
import * as Refunds from '../../refunds/Refund'
import { requestRefund, retryRefund } from '../../refunds/request'
import { CommandError } from '../Command'
import type { Run } from '../commands'
import { poll } from '../poll'
import { configurationOf } from '../words'
import { withLedger } from './database'

type Options = Run<'refund'>

const listed = 50

/**
 * Refunds a payment, or lists the refunds, while a service may be running. A request is written into
 * the database, and the service sends it. Returns the exit code: 1 when nothing was requested, or when
 * the refund has failed. `waitMs`: how long it waits for a running service to act.
 */
export function refund(options: Options, waitMs = 10_000): Promise<number> {
  const { operand: id, retry, amount, note } = options
  if (id === 'list' && (retry || amount !== undefined || note !== undefined))
    throw new CommandError('refund list takes no --amount, --note and --retry')
  if (retry && (amount !== undefined || note !== undefined))
    throw new CommandError('--retry sends the same refund again: leave --amount and --note out')
  return withLedger(options, async (ledger) => {
    if (id === 'list') return list(ledger, options)
    if (!/^pay_[0-9a-f]{1,40}$/.test(id))
      throw new CommandError(`${JSON.stringify(id)} is not the id of a payment, such as pay_01a4`)
    const done = retry ? await retryRefund(ledger.refunds, id) : await request(ledger, options)
    if (!done.ok) throw new CommandError(done.text)
    if (!options.json) options.out(done.text)
    return show(ledger, options, waitMs)
  })
}

function request({ refunds, payments }: Ledger, options: Options) {
  const { env, operand: paymentId, amount, note } = options
  const key = findRefundKey(env)
  if (key === undefined)
    throw new CommandError(
      'REFUND_KEY is not set: run this with the environment of the service, or use its page /admin',
    )
  const { networks, service } = configurationOf(options)
  return requestRefund(
    {
      ...{ refunds, networks, findPayment: payments.findById, now: options.now() },
      account: Crypto.addressOf(key),
      perDayAtomic: service.refundPerDayAtomic,
    },
    { paymentId, amount, note },
  )
}

/** Shows the refund when a running service has made it, or when the time is over. */
async function show(
  { refunds }: Ledger,
  { operand: id, json, now, out }: Options,
  waitMs: number,
): Promise<number> {
  const found = await poll({ now, waitMs }, () => refunds.find(id), isOver)
  if (found === undefined) throw new CommandError(`${id} has no refund`)
  out(json ? JSON.stringify(jsonOf(found)) : lineOf(found))
  if (!json && !isOver(found)) out(pending)
  return found.state === 'failed' ? 1 : 0
}

/** Whether nothing more is sent for a refund. */
export function isOver(found: Refund | undefined): boolean {
  return found?.state !== 'requested' && found?.state !== 'sent'
}

const pending = `The running service sends it when the payment is reorg_depth blocks deep and the account
of REFUND_KEY has the amount: its page /admin/refunds says what it waits for.`

async function list({ refunds }: Ledger, { json, out }: Options): Promise<number> {
  const found = await refunds.list({ before: undefined, limit: listed })
  if (json) out(JSON.stringify(found.map(jsonOf)))
  else for (const each of found) out(lineOf(each))
  const { requested, sent, failed } = await refunds.countOpen()
  const open = requested + sent + failed
  if (!json) out(`${open} not made yet; the newest ${listed} of all are shown`)
  return 0
}

function jsonOf(found: Refund) {
  const { paymentId: payment, account, attempts, note } = found
  return { payment, ...Refunds.toJson(found), account, attempts, ...(note && { note }) }
}

function lineOf(found: Refund): string {
  const { paymentId, state, amountAtomic, reason, transaction, note, createdAt } = found
  const amount = Amount.toDecimal(amountAtomic, Refunds.decimals).padStart(11)
  const at = new Date(createdAt).toISOString()
  const columns = [paymentId, state.padEnd(9), amount, reason.padEnd(11), at, transaction, note]
  return columns.filter((column) => column !== undefined).join('  ')
}
