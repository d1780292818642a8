import type { Address } from 'viem'
import type { Money } from '../src/protocol/Transfer'
import type { Authorization, Charge, Delivered } from './Authorization'
import type { KeyScope } from './Payment'
import { toAuthorization } from './rows'
import { authorizations } from './schema'
import { rowsOf, type Selects, type Values } from './select'

/**
 * Authorizations of the scheme `upto`. Money is authorized or paid once: the database refuses an
 * authorization of money that a payment has, and a payment of money that another one has authorized.
 * Every change is a compare-and-swap: false when the state was another one.
 */
export type AuthorizationLedger = AuthorizationReads & {
  /**
   * Writes an authorization. `known`: its money was authorized or paid before; nothing is written. A
   * power loss may undo one that is `authorized` for up to 100 ms. `limits` hold over all processes;
   * one process that has the ledger alone checks them itself.
   */
  insert(authorization: Authorization, limits?: CeilingLimits): Promise<Inserted>
  /** `authorized` to `metered`, with the charge, and with what the buyer has already. */
  meter(id: string, charge: Charge, delivered: Delivered | undefined): Promise<boolean>
  /** `authorized` to `void`. `lostAt` (unix ms): a forwarded request ended and costs nothing. */
  void(
    id: string,
    charge: Charge,
    delivered: Delivered | undefined,
    lostAt?: number,
  ): Promise<boolean>
  /** `metered` to `failed`. */
  fail(id: string): Promise<boolean>
  /** A settlement failed by the payer's doing (unix ms). The state stays. */
  markFailed(id: string, at: number): Promise<void>
}

/** A payer of one asset, at one merchant. */
export type Buyer = Pick<Money, 'network' | 'asset' | 'payer'> & { merchant: string }

/**
 * A request that was forwarded and never paid for: its whole ceiling where nothing was charged, else the
 * charge that was not settled.
 */
export type Loss = { id: string; merchant: string; payer: Address; atomic: bigint; at: number }

/** At least this much was paid: the payments that are summed are limited. */
type Standing = { paidAtomic: bigint; lostAtomic: bigint }

/** Payments and losses that one read of a standing sums at most. */
const standingRowsMax = 500

export type Inserted = 'stored' | 'known' | { refused: CeilingRefusal }

/** Why a new ceiling was not written although its money is free. */
export type CeilingRefusal =
  /** Another payment or ceiling has the buyer's own key. A process alone finds that earlier. */
  | 'key-used'
  /** Over all processes, the payer has more under way than its funds or its limits cover. */
  | 'payer-under-way'
  /** The relayer has more ceilings to settle than it could before they expire. */
  | 'relayer-busy'

/** The most that may be open together with a new ceiling. */
export type CeilingLimits = {
  /** Most that is open on the payer's ceilings on all networks, atomic. */
  unsettledAtomic: bigint
  /**
   * Most that is open on the payer's ceilings and payments of the asset, atomic: its balance and
   * allowance.
   */
  fundsAtomic: bigint
  /** Most open ceilings that name one relayer of a network: those of a facilitator, or all others. */
  relayerMax: number
  /** Of these, most of the payer. */
  payerMax: number
}

/** As in the partial indexes, so that it is clear that they have these rows. */
const isOpen = "state IN ('authorized', 'metered')"
const isUnpaid = `NOT EXISTS (SELECT 1 FROM payments
  WHERE payments.id = authorizations.id AND payments.state = 'confirmed')`
const isLost = `failed_at IS NOT NULL AND product = 'gateway' AND ${isUnpaid}`
const lost =
  "CASE WHEN coalesce(charge_atomic, '0') = '0' THEN ceiling_atomic ELSE charge_atomic END"

type LossRow = Omit<Loss, 'atomic'> & { atomic: string }

export type AuthorizationReads = ReturnType<typeof createAuthorizationReads>

/** `left`: which open ones no other living process works on. */
export function createAuthorizationReads(
  selects: Selects,
  left: { condition: string; values?: Values } = { condition: 'true' },
) {
  const { select, dialect } = selects
  const { fold, number } = dialect
  const { all, one } = rowsOf(selects, authorizations, toAuthorization)
  const isOf = (column: string) => `${fold(column)} = ${fold(`$${column}`)}`
  const isOfMoney = `network = $network AND ${isOf('asset')} AND ${isOf('payer')}`
  const newest = 'ORDER BY created_at DESC LIMIT 1'
  const isOfKey = `merchant = $merchant AND route = $route AND ${isOf('payer')}
    AND idempotency_key = $key`
  const byMoney = one(`WHERE ${isOfMoney} AND nonce = $nonce`)
  const byId = one('WHERE id = $id')
  const byKey = one(`WHERE ${isOfKey} AND ${isOpen} ${newest}`)
  const voidByKey = one(`WHERE ${isOfKey} AND state = 'void' ${newest}`)
  const open = all(`WHERE ${isOpen} AND ${left.condition} ORDER BY created_at DESC`)
  const failed = select(
    `SELECT 1 FROM authorizations WHERE ${isOf('payer')} AND failed_at > $at AND state <> 'void'
       AND ${isUnpaid} LIMIT 1`,
  )
  const losses = select<LossRow>(
    `SELECT id, merchant, payer, ${lost} AS atomic, failed_at AS at
     FROM authorizations WHERE ${isLost} AND failed_at > $at`,
  )
  const sumOf = (atomic: string) => `CAST(coalesce(sum(${number(atomic)}), 0) AS TEXT)`
  // What another key has signed in the name of the payer is the credit of that key.
  const isOfSigner = `EXISTS (SELECT 1 FROM channels WHERE channels.id = transaction_hash
    AND ${fold('payer_authorizer')} = ${fold('$payer')})`
  const standing = select<{ paid: string; lost: string }>(
    `SELECT (
       SELECT ${sumOf('amount_atomic')} FROM (
         SELECT amount_atomic, merchant, product, state, method, transaction_hash FROM payments
         WHERE ${isOfMoney} LIMIT ${standingRowsMax}) AS paid
       WHERE merchant = $merchant AND product = 'gateway' AND state = 'confirmed'
         AND (method <> 'channel' OR ${isOfSigner})
     ) AS paid, (
       SELECT ${sumOf('lost')} FROM (
         SELECT ${lost} AS lost FROM authorizations
         WHERE ${isLost} AND ${isOf('payer')} AND merchant = $merchant
         ORDER BY failed_at DESC LIMIT ${standingRowsMax}) AS losses
     ) AS lost`,
  )
  return {
    find: ({ network, asset, payer, nonce }: Money) =>
      byMoney({ network, asset, payer, nonce: nonce.toLowerCase() }),
    findById: (id: string) => byId({ id }),
    /** Newest one of the key that is `authorized` or `metered`. */
    findByIdempotencyKey: ({ merchant, route, payer, key }: KeyScope) =>
      byKey({ merchant, route, payer, key }),
    /** Newest one of the key that is `void`. */
    findVoid: ({ merchant, route, payer, key }: KeyScope) =>
      voidByKey({ merchant, route, payer, key }),
    /** Those that are `metered`, and those `authorized` that no other living process works on. */
    open: () => open(left.values),
    /** Whether a settlement of this payer has failed since a time (unix ms), and was not paid after all. */
    hasFailedSince: async (payer: Address, at: number) => (await failed({ payer, at })).length > 0,
    /** What merchants have lost since a time (unix ms). */
    async lossesSince(at: number): Promise<readonly Loss[]> {
      return (await losses({ at })).map((row) => ({ ...row, atomic: BigInt(row.atomic) }))
    },
    /** What a payer has paid to a merchant, and what that merchant has ever lost to it. */
    async standingOf({ network, asset, payer, merchant }: Buyer): Promise<Standing> {
      const [row] = await standing({ network, asset, payer, merchant })
      return { paidAtomic: BigInt(row?.paid ?? 0), lostAtomic: BigInt(row?.lost ?? 0) }
    },
  }
}
