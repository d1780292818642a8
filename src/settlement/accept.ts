import type { Address } from 'viem'
import * as Budget from './budget'
import { type ChainState, type Context, type Order, payerKey } from './context'
import { type Payer, payerOf } from './failures'
import { type Simulation, underWay } from './simulate'
import * as Verify from './verify'

/**
 * Returns the orders that pass and rejects the others with the reason. `plain`: payers without
 * code, where several were simulated together.
 */
export function accept(
  context: Context,
  chain: ChainState,
  orders: readonly Order[],
  seen: { simulations: readonly Simulation[]; plain: ReadonlySet<Address> | undefined },
): Order[] {
  const { simulations, plain } = seen
  const counts = new Map<string, number>()
  return orders.filter((order, index) => {
    // The order may have waited long since it arrived.
    const late = Verify.checkWindow(order.transfer, context.now())
    const simulation = late ?? simulations[index] ?? Verify.unavailable(undefined)
    if (simulation.kind !== 'passes') {
      order.done(isUnsigned(order, simulation) ? { kind: 'unsigned' } : simulation)
      return false
    }
    // A payer with code passed although its key did not sign: do not settle it as a key's payment.
    if (plain && !plain.has(order.transfer.payer) && order.isProven?.() === false) {
      order.done({ kind: 'unsigned' })
      return false
    }
    note(order, simulation, plain)
    const promised = context.inFlight.get(payerKey(order.transfer)) ?? 0n
    if (promised + order.transfer.amountAtomic > simulation.balanceAtomic) {
      order.done(underWay)
      return false
    }
    const payer = payerOf(context, order, order.code)
    const count = counts.get(payer.address) ?? 0
    const refusal = refuse(context, chain, order, { payer, count })
    if (refusal) order.done(refusal)
    else counts.set(payer.address, count + 1)
    return refusal === undefined
  })
}

/** Copies the results of the simulation to the order, for the transaction. */
function note(
  order: Order,
  { code, fees }: Extract<Simulation, { kind: 'passes' }>,
  plain: ReadonlySet<Address> | undefined,
): void {
  order.code = code ?? (plain?.has(order.transfer.payer) ? 'none' : undefined)
  order.fees = fees
  if (order.code === 'none') order.hasCode = false
  else if (order.code !== undefined) order.hasCode = true
}

function refuse(
  context: Context,
  chain: ChainState,
  { purpose }: Order,
  { payer, count }: { payer: Payer; count: number },
): Verify.Refusal | undefined {
  const waitSeconds = context.failures.waitSeconds(payer, count)
  if (waitSeconds > 0) return Verify.lockedOut(waitSeconds)
  return typeof payer.code === 'object' ? Budget.refuseCode(context, chain, purpose) : undefined
}

/** The verdict on a forged signature; it must not affect payments that the payer did sign. */
function isUnsigned({ isProven }: Order, { kind }: Simulation): boolean {
  return kind !== 'unavailable' && isProven?.() === false
}
