import type { Address, Hex } from 'viem'
import { nonceOf } from '../src/protocol/Channel'
import type * as Network from '../src/protocol/Network'
import type { Channel, ChannelTotals, OnChain } from './Channel'
import type { Dialect } from './dialect'
import type { ChannelLedger } from './Ledger'
import { type ChannelRow, channels } from './schema'
import { columnsOf, decoderOf, rowsOf, type Selects } from './select'
import type { MessagesBase } from './webhooks'

const decode = decoderOf(channels)

/** The channel of a row as a database gives it. */
export function toChannel(found: unknown): Channel {
  const row = decode(found)
  const { id, network, chargedAtomic, signedAtomic, signature, reservedId, reservedAtomic } = row
  const { reservedSignature, reservedFingerprint, reservedAt } = row
  return {
    id,
    network,
    config: {
      payer: row.payer,
      payerAuthorizer: row.payerAuthorizer,
      receiver: row.receiver,
      receiverAuthorizer: row.receiverAuthorizer,
      token: row.token,
      withdrawDelay: row.withdrawDelay,
      salt: row.salt,
    },
    chargedAtomic,
    signed:
      signedAtomic === null || signature === null
        ? undefined
        : { maxAtomic: signedAtomic, signature },
    reserved:
      reservedId === null ||
      reservedAtomic === null ||
      reservedSignature === null ||
      reservedFingerprint === null ||
      reservedAt === null
        ? undefined
        : {
            id: reservedId,
            maxAtomic: reservedAtomic,
            signature: reservedSignature,
            fingerprint: reservedFingerprint,
            at: reservedAt,
          },
    balanceAtomic: row.balanceAtomic,
    claimedAtomic: row.claimedAtomic,
    withdrawAt: row.withdrawAt ?? undefined,
    refundNonce: row.refundNonce,
    syncedAt: row.syncedAt,
    usedAt: row.usedAt,
    createdAt: row.createdAt,
  }
}

/** The row of a channel that was not known. */
function channelRow(
  { id, network, config }: Pick<Channel, 'id' | 'network' | 'config'>,
  { withdrawAt, ...state }: OnChain,
  now: number,
): ChannelRow {
  return {
    ...{ ...config, ...state, id, network },
    ...{ chargedAtomic: state.claimedAtomic, signedAtomic: null, signature: null },
    ...{ reservedId: null, reservedAtomic: null, reservedSignature: null },
    ...{ reservedFingerprint: null, reservedAt: null, withdrawAt: withdrawAt ?? null },
    ...{ syncedAt: now, usedAt: now, createdAt: now },
  }
}

/** As in the partial index, so that it is clear that it has these rows. */
export const isOpen = '(balance_atomic <> claimed_atomic OR withdraw_at IS NOT NULL)'

/** What was charged of the balance and is not claimed: less than zero where a node is behind. */
function unclaimedOf({ number }: Dialect): string {
  const [charged, balance] = [number('charged_atomic'), number('balance_atomic')]
  return `(CASE WHEN ${charged} < ${balance} THEN ${charged} ELSE ${balance} END
    - ${number('claimed_atomic')})`
}

export type TotalsRow = Omit<ChannelTotals, 'unclaimedAtomic'> & { unclaimed: string }

/** The text that reads `TotalsRow`. */
export function totalsSql(dialect: Dialect): string {
  const unclaimed = unclaimedOf(dialect)
  return `SELECT network, count(*) AS channels, count(withdraw_at) AS withdrawals,
      CAST(sum(CASE WHEN ${unclaimed} > 0 THEN ${unclaimed} ELSE 0 END) AS TEXT) AS unclaimed,
      count(CASE WHEN ${unclaimed} > 0 THEN withdraw_at END) AS "unsafeWithdrawals"
    FROM channels WHERE ${isOpen} GROUP BY network ORDER BY network`
}

export function totalsOf({ unclaimed, ...row }: TotalsRow): ChannelTotals {
  return { ...row, unclaimedAtomic: BigInt(unclaimed) }
}

/** Payments of a channel that are searched for a voucher. */
const spentMax = 2_000

export function createChannelReads(selects: Selects) {
  const { dialect, select } = selects
  const { all, one } = rowsOf(selects, channels, toChannel)
  const unclaimed = unclaimedOf(dialect)
  const byId = one('WHERE id = $id')
  const isAfter = '(created_at, id) > (CAST($at AS BIGINT), CAST($after AS TEXT))'
  const oldest = `AND ${isAfter} ORDER BY created_at, id LIMIT $limit`
  const open = all(`WHERE ${isOpen} ${oldest}`)
  const openOf = all(`WHERE ${isOpen} AND network = $network ${oldest}`)
  const list = all(`WHERE (created_at, id) < (CAST($at AS BIGINT), CAST($before AS TEXT))
    ORDER BY created_at DESC, id DESC LIMIT $limit`)
  const owed = all(`WHERE ${isOpen} AND network = $network AND signature IS NOT NULL
      AND ${unclaimed} > 0
    ORDER BY ${unclaimed} DESC, id LIMIT $limit`)
  const withdrawals = all(`WHERE ${isOpen} AND withdraw_at IS NOT NULL
    ORDER BY withdraw_at, id LIMIT $limit`)
  const totals = select<TotalsRow>(totalsSql(dialect))
  const authorizers = select<{ authorizer: Address; channels: number }>(
    `SELECT ${dialect.any('receiver_authorizer')} AS authorizer, count(*) AS channels
     FROM channels WHERE ${isOpen} GROUP BY ${dialect.fold('receiver_authorizer')}
     ORDER BY ${dialect.fold('receiver_authorizer')}`,
  )
  const { fold } = dialect
  const receivers = select<{ receiver: Address; token: Address }>(
    `SELECT ${dialect.any('receiver')} AS receiver, ${dialect.any('token')} AS token
     FROM channels WHERE network = $network GROUP BY ${fold('receiver')}, ${fold('token')}`,
  )
  const spent = select(
    `SELECT id FROM (
       SELECT id, signature FROM payments
       WHERE network = $network AND ${fold('asset')} = ${fold('$asset')}
         AND ${fold('payer')} = ${fold('$payer')} AND nonce >= $first AND nonce < $end
       ORDER BY nonce DESC LIMIT ${spentMax}) AS newest
     WHERE signature = $signature LIMIT 1`,
  )
  const find = (id: Hex) => byId({ id: id.toLowerCase() })
  const reads: Omit<ChannelLedger, keyof ChannelChanges | 'reserve' | 'charge'> = {
    find,
    async open({ network, after = '0x', limit }) {
      const at = (await find(after))?.createdAt ?? 0
      const page = { at, after, limit }
      return network === undefined ? open(page) : openOf({ ...page, network })
    },
    async list({ before = '0x', limit }) {
      const at = (await find(before))?.createdAt ?? Number.MAX_SAFE_INTEGER
      return list({ at, before, limit })
    },
    unclaimed: (network: Network.Id, limit: number) => owed({ network, limit }),
    withdrawals: (limit: number) => withdrawals({ limit }),
    totals: async () => (await totals()).map(totalsOf),
    authorizers: () => authorizers(),
    receivers: (network: Network.Id) => receivers({ network }),
    async isSpent({ id, network, config: { token: asset, payer }, chargedAtomic }, signature) {
      const range = { first: nonceOf(id, 0n), end: nonceOf(id, chargedAtomic) }
      const paid = { network, asset, payer, signature: signature.toLowerCase() }
      return (await spent({ ...paid, ...range })).length > 0
    },
  }
  return reads
}

/** `one` is a smaller decimal than `other`. */
export function isBelow(one: string, other: string): string {
  return `(length(${one}) < length(${other}) OR (length(${one}) = length(${other}) AND ${one} < ${other}))`
}

const reservedColumns = columnsOf(channels)
  .map(({ column }) => column.name)
  .filter((name) => name.startsWith('reserved_'))

/** What ends a reservation. */
export const unreserved = reservedColumns.map((name) => `${name} = NULL`).join(', ')

const isRaised = isBelow('charged_atomic', '$claimed')
const isOfRefund = "substr(reserved_id, 1, 7) = 'refund:'"
const isUseless = `(CASE WHEN ${isOfRefund} THEN reserved_id <> 'refund:' || $refundNonce ELSE ${isRaised} END
  OR (CAST($balance AS TEXT) = $claimed AND CAST($withdrawAt AS BIGINT) IS NULL))`

type ChannelChanges = Pick<ChannelLedger, 'insert' | 'sync' | 'release'>

/** Writes that are one statement for both databases, and that may run twice. */
export function createChannelChanges(change: MessagesBase['change']) {
  const insert = change<object>(
    'soon',
    `INSERT INTO channels (${columnsOf(channels)
      .map(({ column }) => column.name)
      .join(', ')})
     VALUES (${columnsOf(channels)
       .map(({ key }) => `$${key}`)
       .join(', ')})
     ON CONFLICT DO NOTHING RETURNING id`,
  )
  const sync = change<object>(
    'soon',
    `UPDATE channels SET
       charged_atomic = CASE WHEN ${isRaised} THEN $claimed ELSE charged_atomic END,
       signed_atomic = CASE WHEN NOT ${isBelow('signed_atomic', '$claimed')} THEN signed_atomic END,
       signature = CASE WHEN NOT ${isBelow('signed_atomic', '$claimed')} THEN signature END,
       ${reservedColumns.map((name) => `${name} = CASE WHEN NOT ${isUseless} THEN ${name} END`).join(', ')},
       balance_atomic = $balance, claimed_atomic = $claimed, withdraw_at = $withdrawAt,
       refund_nonce = $refundNonce, synced_at = $now
     WHERE id = $id RETURNING *`,
  )
  const release = change<object>(
    'soon',
    `UPDATE channels SET ${unreserved} WHERE id = $id AND reserved_id = $reservationId RETURNING id`,
  )
  const changes: ChannelChanges = {
    async insert(channel, state, now) {
      const row: Readonly<Record<string, unknown>> = channelRow(channel, state, now)
      const values = columnsOf(channels).map(({ key, toDriver }) => {
        const value = row[key] ?? null
        return [key, value === null || toDriver === undefined ? value : toDriver(value)]
      })
      return (await insert(Object.fromEntries(values))).length > 0
    },
    async sync(id, { balanceAtomic, claimedAtomic, withdrawAt, refundNonce }, now) {
      const [row] = await sync({
        ...{ id: id.toLowerCase(), now, withdrawAt: withdrawAt ?? null },
        ...{ balance: String(balanceAtomic), claimed: String(claimedAtomic) },
        refundNonce: String(refundNonce),
      })
      return row && toChannel(row)
    },
    release: async (id, reservationId) =>
      (await release({ id: id.toLowerCase(), reservationId })).length > 0,
  }
  return changes
}

/** What was charged before a payment of a channel, which is in its nonce. */
export function baseOf({ nonce }: { nonce: Hex }): bigint {
  return BigInt(`0x${nonce.slice(34)}`)
}
