import type { Address } from 'viem'
import type { Ledger } from '../../db/Ledger'
import type { NetworkConfig } from '../config/Config'
import type * as Network from '../protocol/Network'
import { dayStart } from '../protocol/Time'
import * as Refusals from '../settlement/read/refusals'

/** One payee may use one part in this many of the facilitator's daily gas. */
const parts = 4n

export type Payees = ReturnType<typeof createPayees>

type PayeesOptions = {
  ledger: {
    gas: Pick<Ledger['gas'], 'spentOn'>
    payments: Pick<Ledger['payments'], 'payeeGasSince' | 'payeeGasOf'>
  }
  networks: readonly NetworkConfig[]
  /** Price of a unit of gas now, in wei. */
  priceOf: (network: Network.Id) => bigint
  now: () => number
}

/** Gas that counts for a payment under way: the highest limit of a payer without code. */
const openGas = 300_000n

type PayeePayment = {
  network: Network.Id
  payee: Address
  known: string | undefined
  /** Gas limit of a job; undefined for a payment. */
  gas?: bigint
}

/** The id of a payment; `all`: the gas that has counted under way. */
export type Use = string | 'all' | undefined

type Day = { from: number; networks: Map<Network.Id, Part> }

/** Gas limits, in proportion to which the day's cost is divided. */
type Part = { total: number; byPayee: Map<Address, number> }

/**
 * Divides what was spent in the day (UTC) among payees by the gas limits of what was sent for each.
 * Stores the day's costs in memory, filled from the database, and writes nothing. Settlements in
 * progress count at the present gas price, so that concurrent ones cannot exceed the share
 * together.
 */
export function createPayees({ ledger, networks, priceOf, now }: PayeesOptions) {
  const { gas, payments } = ledger
  const budgets = new Map(networks.map(({ id, gasPerDayWei }) => [id, gasPerDayWei.facilitator]))
  /** Gas limits of what is under way, by network and payee. */
  const underWay = new Map<string, bigint>()
  const days = createDays(payments, now)
  return {
    /** Reads the day's gas, unless it is known. Call it before `isSpent`. */
    load: days.load,
    /** Whether the share of one payee is spent, from memory: a payment can be counted in the same turn. */
    isSpent(network: Network.Id, payee: Address): boolean {
      const part = days.today()?.networks.get(network)
      const open = underWay.get(`${network} ${payee}`) ?? 0n
      // A payment of yesterday that is requested again has no gas in today's parts.
      const own = BigInt(part?.byPayee.get(payee) ?? 0)
      if (own + open === 0n) return false
      const total = BigInt(part?.total || 1)
      const spentWei = gas.spentOn(network, 'facilitator', now()) * own
      const openWei = open * priceOf(network)
      const budgetWei = budgets.get(network) ?? 0n
      return (spentWei + openWei * total) * parts >= budgetWei * total
    },
    /**
     * Counts a payment or a job that is about to be sent. `known`: the id of one that is sent again. Write nothing
     * of it before `ready`.
     */
    begin({ network, payee, known, gas = openGas }: PayeePayment) {
      const key = `${network} ${payee}`
      underWay.set(key, (underWay.get(key) ?? 0n) + gas)
      let filled: Day | undefined
      let before = 0
      const prepare = async () => {
        filled = await days.settled()
        if (known !== undefined && filled !== undefined) before = await payments.payeeGasOf(known)
      }
      return {
        /** Rejects when the database cannot be read; `end` must be called all the same. */
        ready: prepare(),
        /**
         * Call it once, when sending has ended: with the id of a payment, or with `all` for a job, and where
         * another gateway is to send the payment. Never rejects.
         */
        async end(id: Use): Promise<void> {
          let more = 0
          try {
            if (id === 'all') more = Number(gas)
            else if (filled && id !== undefined) more = (await payments.payeeGasOf(id)) - before
          } catch {
            if (filled) days.forget(filled)
          }
          // Without an await in between, so that it always counts as under way or as spent.
          const left = (underWay.get(key) ?? 0n) - gas
          if (left > 0n) underWay.set(key, left)
          else underWay.delete(key)
          if (filled) add(filled, network, payee, more)
        },
      }
    },
  }
}

type Spending = PayeePayment & {
  /** Whether the payee has only its share. */
  isLimited: boolean
}

/** The refusal of a payee that has used its share. */
export const overShare = Refusals.later(
  'The gas that one payee may have of the budget of today is spent; it starts again at 0:00 UTC.',
  600,
)

/**
 * Does work that spends gas for a payee, and counts it by what `useOf` finds of its result, as of `end`. The
 * result is undefined after a fault.
 */
export async function spendFor<T>(
  payees: Payees,
  { isLimited, ...payment }: Spending,
  work: () => Promise<T>,
  useOf: (result: T | undefined) => Use | Promise<Use>,
): Promise<T | typeof overShare> {
  if (isLimited) await payees.load()
  // Do not await from here to the count: calls for one payee must not pass its share together.
  if (isLimited && payees.isSpent(payment.network, payment.payee)) return overShare
  const count = payees.begin(payment)
  let result: T | undefined
  try {
    await count.ready
    result = await work()
    return result
  } finally {
    await count.end(await useOf(result))
  }
}

/**
 * Keeps the parts of one day, read at the first call. A facilitator that is not open never calls
 * it.
 */
function createDays(payments: PayeesOptions['ledger']['payments'], now: () => number) {
  let day: Day | undefined
  let loading: { from: number; done: Promise<void> } | undefined

  async function fill(from: number): Promise<void> {
    const filled: Day = { from, networks: new Map() }
    for (const { network, payee, gas } of await payments.payeeGasSince(from)) {
      add(filled, network, payee, gas)
    }
    // Midnight may have passed meanwhile.
    if (loading?.from === from) day = filled
  }

  const today = () => (day?.from === dayStart(now()) ? day : undefined)
  return {
    today,
    async load(): Promise<void> {
      if (today() !== undefined) return
      const from = dayStart(now())
      if (loading?.from !== from) {
        const done = fill(from).finally(() => {
          if (loading?.done === done) loading = undefined
        })
        loading = { from, done }
      }
      await loading.done
    },
    /**
     * The day to which new payments are added. Undefined: a day that is filled later contains them.
     */
    async settled(): Promise<Day | undefined> {
      // A read that is running may or may not include the payment.
      await loading?.done.catch(() => undefined)
      return day
    },
    /** Reads the day again at the next call, because a payment may be missing. */
    forget(incomplete: Day): void {
      if (day === incomplete) day = undefined
    },
  }
}

function add({ networks }: Day, network: Network.Id, payee: Address, gas: number): void {
  const part = networks.get(network) ?? { total: 0, byPayee: new Map() }
  part.total += gas
  part.byPayee.set(payee, (part.byPayee.get(payee) ?? 0) + gas)
  networks.set(network, part)
}
