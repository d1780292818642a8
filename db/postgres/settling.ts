import type { SettlingCommits } from '../Ledger'
import { toPayment } from '../rows'
import { transactions } from '../schema'
import { decoderOf } from '../select'
import * as Event from '../WebhookEvent'
import { createEnds } from './ends'
import { fenceOf, fenceOfJob, fenceOfTransaction, laneKey } from './fences'
import { createLaunches } from './launches'
import { type Json, toJson } from './rows'
import type { SettlingParts } from './settling-parts'

const decodeTransaction = decoderOf(transactions)

export function createSettling(parts: SettlingParts): SettlingCommits {
  return { ...createLaunches(parts), ...createChanges(parts), ...createEnds(parts) }
}

type Changes = Pick<
  SettlingCommits,
  'replace' | 'confirm' | 'expire' | 'revert' | 'reopen' | 'resendJob'
>

function createChanges(parts: SettlingParts): Changes {
  const { commits } = parts
  const nothing = () => undefined
  return {
    async replace({ transaction, hashes, payments, job }) {
      await commits.add({
        call: 'replace',
        input: {
          fence: fenceOf(parts, transaction),
          transaction: toJson(transactions, transaction),
          hashes,
          payments,
          job: job ?? null,
        },
        key: laneKey(transaction),
        read: nothing,
      })
    },
    async confirm(id, { transaction, logIndex, blockNumber }, at) {
      await commits.add({
        call: 'confirm',
        input: {
          id,
          transaction: transaction.toLowerCase(),
          log_index: logIndex,
          block_number: Number(blockNumber),
          at,
        },
        key: id,
        read: nothing,
        events: {
          types: ['payment.confirmed'],
          of: (row) => (row === null ? [] : [Event.paymentConfirmed(toPayment(row), at)]),
        },
      })
    },
    async expire(id, isUsed) {
      await commits.add({ call: 'expire', input: { id, used: isUsed }, key: id, read: nothing })
    },
    async revert(id, hashes) {
      await commits.add({ call: 'revert', input: { id, hashes }, key: id, read: nothing })
    },
    reopen: async (network, hash) =>
      commits.add({
        call: 'reopen',
        input: { fence: await fenceOfTransaction(parts, network, hash), network, hash },
        key: `lane:${network}:${hash}`,
        read: (value) => {
          const { payments, job } = value as { payments: string[]; job: string | null }
          return { payments, job: job ?? undefined }
        },
      }),
    resendJob: async (id) =>
      commits.add({
        call: 'resend_job',
        input: { fence: await fenceOfJob(parts, id), id },
        key: id,
        read: (rows) => (rows as readonly Json[]).map(decodeTransaction),
      }),
  }
}
