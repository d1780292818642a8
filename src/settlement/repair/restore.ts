import type { Hex } from 'viem'
import type { Payment } from '../../../db/Payment'
import { RpcError } from '../../chain/client'
import * as Receipt from '../../chain/receipt'
import { assertConfirmed, readMoney } from '../read/reads'
import { resend, track } from '../send/lifecycle'
import type { Outcome } from '../send/Outcome'
import * as Resolve from '../send/resolve'
import type { ChainState, Context } from '../state/state'

/** Checks at which external bytes may stay out before we settle the authorization. */
const attemptsMax = 3

/**
 * Restores payments of which no transaction of ours is open. Either a reorganisation removed the
 * external transaction that had paid, or another one was included at the account nonce of ours. Sends
 * the external bytes again where they are known. If they stay out and the authorization can still pay,
 * settles it. Undecided payments stay in `broadcast` for `reorg_depth` blocks. Returns at once.
 */
export async function restore(context: Context, chain: ChainState): Promise<void> {
  const { lostRaw, restores } = chain.watch
  const ids = await context.ledger.payments.orphans(chain.network.id)
  if (ids.length === 0) {
    lostRaw.clear()
    restores.clear()
    return
  }
  for (const id of ids) {
    const payment = await context.ledger.payments.findById(id)
    if (!payment || context.progress.running.has(id)) continue
    void track(context, { payment }, () => drive(context, chain, payment))
  }
}

async function drive(context: Context, chain: ChainState, payment: Payment): Promise<Outcome> {
  const { id, transaction } = payment
  const before = chain.watch.restores.get(id) ?? { attempts: 0, since: 0n }
  const attempts = before.attempts + 1
  // The check that finds a reorganisation lowers the newest block, which the next one reads again: the
  // blocks count from there.
  const isCounting = attempts > 2
  const since = isCounting ? before.since : chain.head.number
  chain.watch.restores.set(id, { attempts, since })
  if (await confirmAgain(context, chain, payment)) return Resolve.current(context, payment)
  const isSent = attempts <= attemptsMax && (await sendAgain(chain, transaction))
  const reason = 'invalid_exact_evm_transaction_failed'
  const outcome = await Resolve.decide(context, { payment }, reason)
  if (outcome.kind !== 'pending') return outcome
  if (isSent) return outcome
  const money = await readMoney(chain, payment.transfer)
  if (money.used || money.timestamp > payment.transfer.validBefore) {
    context.log('payment-undecided', { payment: id, transaction })
    const isSearched = chain.head.number >= since + BigInt(chain.network.reorgDepth)
    if (!isCounting || !isSearched) return outcome
    // Nothing of ours is open: what used the nonce did not pay for this.
    await context.ledger.settling.revert(id, [transaction])
    return Resolve.decide(context, { payment }, reason)
  }
  context.log('payment-settled-again', { payment: id, transaction })
  await context.ledger.settling.revert(id, [transaction])
  return resend(context, { payment: (await context.ledger.payments.findById(id)) ?? payment })
}

/** The same transaction in another block pays as it did before. */
async function confirmAgain(
  context: Context,
  chain: ChainState,
  payment: Payment,
): Promise<boolean> {
  const found = await Resolve.findPaid(context, chain, payment, payment.transaction)
  if (!found) return false
  await assertConfirmed(context, chain, found.transaction)
  await context.ledger.settling.confirm(payment.id, found, context.now())
  return true
}

async function sendAgain(chain: ChainState, hash: Hex): Promise<boolean> {
  try {
    const raw =
      chain.watch.lostRaw.get(hash) ??
      (await chain.client.call('eth_getRawTransactionByHash', [hash]))
    if (!Receipt.isHex(raw) || raw.length <= 2) return false
    await chain.client.call('eth_sendRawTransaction', [raw])
    return true
  } catch (error) {
    // A node that has the bytes reports that; one that refuses them will refuse again.
    return error instanceof RpcError && /known|already/i.test(error.message)
  }
}
