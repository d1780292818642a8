import { Database } from 'bun:sqlite'
import { type Address, type Hex, toEventSelector } from 'viem'
import type { Chain } from '../../src/demo/chains'
import { nap } from './payers'

/** Compares the answers to honest clients with the ledger, and the ledger with the chains. */

/** One request of an honest client; without a nonce it paid nothing. */
export type Seen = { nonce: Hex | undefined; isGood: boolean }

/** A payment of the ledger. Addresses and nonces are in lower case. */
export type Charge = {
  payer: string
  nonce: string
  amountAtomic: bigint
  state: string
  delivery: string
  truncated: number
}

/** The data of one chain; `used` has a nonce for each AuthorizationUsed. */
export type Moves = {
  transfers: readonly { payer: string; amountAtomic: bigint }[]
  used: readonly string[]
}

export type Account = {
  seen: readonly Seen[]
  charges: readonly Charge[]
  moves: Moves
  /** Addresses of the honest clients, and the cost of each of their requests. */
  honest: readonly Address[]
  priceAtomic: bigint
}

export type Site = { chain: Chain; token: Address }

const transferTopic = toEventSelector('Transfer(address,address,uint256)')
const usedTopic = toEventSelector('AuthorizationUsed(address,bytes32)')
/** States in which money may have moved; not `reverted` and `expired`. */
const mayBeCharged = ({ state }: Charge) => state === 'confirmed' || state === 'broadcast'
const total = (entries: readonly { amountAtomic: bigint }[]) =>
  entries.reduce((sum, { amountAtomic }) => sum + amountAtomic, 0n)

/** All mismatches; empty when the data is consistent. */
export function findMismatches({ seen, charges, moves, honest, priceAtomic }: Account): string[] {
  const found: string[] = []
  const payers = new Set(honest.map((address) => address.toLowerCase()))
  const own = charges.filter(({ payer }) => payers.has(payer))
  const uses = Map.groupBy(moves.used, (nonce) => nonce)
  // The program may end before it has seen the block of its last transactions.
  const isCharged = (charge: Charge) =>
    mayBeCharged(charge) && (charge.state === 'confirmed' || uses.has(charge.nonce))
  const byNonce = Map.groupBy(own, ({ nonce }) => nonce)
  const known = new Set<string>()
  for (const { nonce, isGood } of seen) {
    if (nonce === undefined) {
      if (isGood) found.push('an answer was given without a payment')
      continue
    }
    if (known.has(nonce)) found.push(`${nonce} paid for two requests`)
    known.add(nonce)
    const [charge, more] = (byNonce.get(nonce) ?? []).filter(isCharged)
    if (more !== undefined) found.push(`${nonce} was charged twice`)
    const isDelivered = charge?.delivery === 'delivered' && charge.truncated === 0
    if (isGood && !isDelivered)
      found.push(`${nonce} was answered, the ledger says ${charge?.delivery ?? 'nothing'}`)
    if (!isGood && charge !== undefined) found.push(`${nonce} was charged without an answer`)
  }
  for (const { nonce } of own.filter(isCharged))
    if (!known.has(nonce)) found.push(`${nonce} was charged, and no honest client sent it`)
  const charged = charges.filter(isCharged)
  const chargedNonces = new Set(charged.map(({ nonce }) => nonce))
  for (const { nonce } of charged) {
    const count = uses.get(nonce)?.length ?? 0
    if (count !== 1) found.push(`${nonce} was charged and moved money ${count} times`)
  }
  for (const nonce of uses.keys())
    if (!chargedNonces.has(nonce)) found.push(`${nonce} moved money that the ledger has not`)
  const expect = (what: string, moved: bigint, wanted: bigint) => {
    if (moved !== wanted) found.push(`${what}: ${moved} moved, ${wanted} charged`)
  }
  expect('all payers', total(moves.transfers), total(charged))
  const good = seen.filter(({ isGood }) => isGood).length
  const honestMoves = moves.transfers.filter(({ payer }) => payers.has(payer))
  expect('honest payers', total(honestMoves), BigInt(good) * priceAtomic)
  return found
}

/** All payments of a database. */
export function readCharges(file: string): Charge[] {
  const database = new Database(file, { readonly: true })
  try {
    return database
      .query<Omit<Charge, 'amountAtomic'> & { amount: string }, []>(
        `SELECT lower(payer) AS payer, lower(nonce) AS nonce, amount_atomic AS amount, state,
          delivery, truncated FROM payments`,
      )
      .all()
      .map(({ amount, ...charge }) => ({ ...charge, amountAtomic: BigInt(amount) }))
  } finally {
    database.close()
  }
}

/**
 * Reads the chains when they have everything that was charged, or after a time limit: the last
 * transactions may be in no block when the program ends.
 */
export async function readMoves(
  sites: readonly Site[],
  payee: Address,
  charges: readonly Charge[],
): Promise<Moves> {
  const deadline = Date.now() + 10_000
  for (;;) {
    const all = await Promise.all(sites.map((site) => readSite(site, payee)))
    const moves = {
      transfers: all.flatMap(({ transfers }) => transfers),
      used: all.flatMap(({ used }) => used),
    }
    const used = new Set(moves.used)
    const isWhole = charges.filter(mayBeCharged).every(({ nonce }) => used.has(nonce))
    if (isWhole || Date.now() > deadline) return moves
    await nap(200, AbortSignal.timeout(1_000))
  }
}

async function readSite({ chain, token }: Site, payee: Address): Promise<Moves> {
  const logsOf = async (topics: readonly (Hex | null)[]) =>
    (await chain.rpc('eth_getLogs', [
      { address: token, topics, fromBlock: '0x0', toBlock: 'latest' },
    ])) as { topics: Hex[]; data: Hex }[]
  const to: Hex = `0x${payee.slice(2).toLowerCase().padStart(64, '0')}`
  const [transfers, used] = await Promise.all([
    logsOf([transferTopic, null, to]),
    logsOf([usedTopic]),
  ])
  return {
    transfers: transfers.map(({ topics, data }) => ({
      payer: `0x${topics[1]?.slice(26)}`,
      amountAtomic: BigInt(data),
    })),
    used: used.map(({ topics }) => topics[2]?.toLowerCase() ?? ''),
  }
}
