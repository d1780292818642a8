import type { Address, Hex } from 'viem'
import { nonceOf } from '../src/protocol/Channel'
import type * as Network from '../src/protocol/Network'
import type { Channel, ChannelTotals, OnChain } from './Channel'
import type { Dialect } from './dialect'
import { channels } from './schema'
import { allOf, columnsOf, decoderOf, rowsOf, type Selects } from './select'
import type { MessagesBase } from './webhooks'

const decode = decoderOf(channels)

/** The channel of a row as a database gives it. */
export function toChannel(found: unknown): Channel {
  const { id, network, chargedAtomic, signedAtomic, signature, ...row } = decode(found)
  const { reservedId, reservedAtomic, reservedSignature, reservedFingerprint, reservedAt } = row
  const { balanceAtomic, claimedAtomic, withdrawAt, refundNonce, syncedAt, usedAt } = row
  const { payer, payerAuthorizer, receiver, receiverAuthorizer, token, withdrawDelay, salt } = row
  return {
    ...{ id, network, chargedAtomic, balanceAtomic, claimedAtomic, refundNonce },
    ...{ syncedAt, usedAt, createdAt: row.createdAt },
    config: { payer, payerAuthorizer, receiver, receiverAuthorizer, token, withdrawDelay, salt },
    withdrawAt: withdrawAt ?? undefined,
    signed: allOf({ maxAtomic: signedAtomic, signature }),
    reserved: allOf({
      id: reservedId,
      maxAtomic: reservedAtomic,
      signature: reservedSignature,
      fingerprint: reservedFingerprint,
      at: reservedAt,
    }),
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

/** Reads the totals of the open channels by network. */
export function createTotals({ dialect, select }: Selects) {
  const unclaimed = unclaimedOf(dialect)
  const totals = select<Omit<ChannelTotals, 'unclaimedAtomic'> & { unclaimed: string }>(
    `SELECT network, count(*) AS channels, count(withdraw_at) AS withdrawals,
      CAST(sum(CASE WHEN ${unclaimed} > 0 THEN ${unclaimed} ELSE 0 END) AS TEXT) AS unclaimed,
      count(CASE WHEN ${unclaimed} > 0 THEN withdraw_at END) AS "unsafeWithdrawals"
    FROM channels WHERE ${isOpen} GROUP BY network ORDER BY network`,
  )
  return async (): Promise<readonly ChannelTotals[]> =>
    (await totals()).map(({ unclaimed, ...row }) => ({
      ...row,
      unclaimedAtomic: BigInt(unclaimed),
    }))
}

type Agreed = Pick<Channel, 'id' | 'network' | 'config'>

export type ChannelRows = ReturnType<typeof createChannelRows>

/**
 * Reads, and writes that may run twice. A channel is open while it has money: a balance that is not
 * claimed, or a withdrawal. What is unclaimed is what was charged of that balance.
 */
export function createChannelRows({ change, ...selects }: MessagesBase) {
  return { ...createReads(selects), ...createWrites(change) }
}

function createReads(selects: Selects) {
  const { dialect, select } = selects
  const { fold, any } = dialect
  const { all, one } = rowsOf(selects, channels, toChannel)
  const unclaimed = unclaimedOf(dialect)
  const byId = one('WHERE id = $id')
  const open = all(`WHERE ${isOpen} AND network = $network
      AND (created_at, id) > (CAST($at AS BIGINT), CAST($after AS TEXT))
    ORDER BY created_at, id LIMIT $limit`)
  const list = all(`WHERE (created_at, id) < (CAST($at AS BIGINT), CAST($before AS TEXT))
    ORDER BY created_at DESC, id DESC LIMIT $limit`)
  const owed = all(`WHERE ${isOpen} AND network = $network AND signature IS NOT NULL
      AND ${unclaimed} > 0
    ORDER BY ${unclaimed} DESC, id LIMIT $limit`)
  const withdrawals = all(`WHERE ${isOpen} AND withdraw_at IS NOT NULL
    ORDER BY withdraw_at, id LIMIT $limit`)
  const authorizers = select<{ authorizer: Address; channels: number }>(
    `SELECT ${any('receiver_authorizer')} AS authorizer, count(*) AS channels
     FROM channels WHERE ${isOpen} GROUP BY ${fold('receiver_authorizer')}
     ORDER BY ${fold('receiver_authorizer')}`,
  )
  const receivers = select<{ receiver: Address; token: Address }>(
    `SELECT ${any('receiver')} AS receiver, ${any('token')} AS token
     FROM channels WHERE network = $network GROUP BY ${fold('receiver')}, ${fold('token')}`,
  )
  // By the index of the money: the nonces begin with the id of the channel.
  const charges = select<{ id: string }>(
    `SELECT id FROM payments
    WHERE network = $network AND ${fold('asset')} = ${fold('$token')}
      AND ${fold('payer')} = ${fold('$payer')} AND nonce >= $first AND nonce < $end
    ORDER BY nonce DESC LIMIT $limit`,
  )
  const find = (id: Hex) => byId({ id: id.toLowerCase() })
  return {
    find,
    /** The open ones of a network, the oldest first, after an id. */
    async open(network: Network.Id, limit: number, after: Hex = '0x') {
      const at = (await find(after))?.createdAt ?? 0
      return open({ network, at, after, limit })
    },
    /** All, the newest first. `before`: only those after this one in the list. */
    async list({ before = '0x', limit }: { before?: Hex | undefined; limit: number }) {
      const at = (await find(before))?.createdAt ?? Number.MAX_SAFE_INTEGER
      return list({ at, before, limit })
    },
    /** Those with unclaimed money and its voucher, the most first. */
    unclaimed: (network: Network.Id, limit: number) => owed({ network, limit }),
    /** Those with a withdrawal, the oldest one first. */
    withdrawals: (limit: number) => withdrawals({ limit }),
    /** Of the open ones. */
    totals: createTotals(selects),
    /** The accounts that sign claims of the open channels. */
    authorizers: () => authorizers(),
    /** Whom channels of a network pay, also those that are closed, and in what. Reads all of them. */
    receivers: (network: Network.Id) => receivers({ network }),
    /** Ids of the newest payments of a channel. */
    async charges({ id, network, config, chargedAtomic }: Channel, limit: number) {
      const { token, payer } = config
      const range = { first: nonceOf(id, 0n), end: nonceOf(id, chargedAtomic) }
      return (await charges({ network, token, payer, ...range, limit })).map((each) => each.id)
    },
  }
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

/** Ends the reservations of requests. A refund stays reserved: its transaction may have been sent. */
export const releaseRequests = `UPDATE channels SET ${unreserved}
  WHERE ${isOpen} AND reserved_id NOT LIKE 'refund:%'`

const isRaised = isBelow('charged_atomic', '$claimed')
const isOfRefund = "substr(reserved_id, 1, 7) = 'refund:'"
const isRefunded = isBelow('substr(reserved_id, 8)', '$refundNonce')
const isUseless = `CASE WHEN ${isOfRefund} THEN ${isRefunded} ELSE ${isRaised} END`
const isEmpty = '(CAST($balance AS TEXT) = $claimed AND CAST($withdrawAt AS BIGINT) IS NULL)'

function createWrites(change: MessagesBase['change']) {
  const insert = change(
    'soon',
    `INSERT INTO channels (id, network, payer, payer_authorizer, receiver, receiver_authorizer,
       token, withdraw_delay, salt, charged_atomic, balance_atomic, claimed_atomic, withdraw_at,
       refund_nonce, synced_at, used_at, created_at)
     VALUES ($id, $network, $payer, $payerAuthorizer, $receiver, $receiverAuthorizer,
       $token, $withdrawDelay, $salt, $claimed, $balance, $claimed, $withdrawAt,
       $refundNonce, $now, $now, $now)
     ON CONFLICT DO NOTHING RETURNING id`,
  )
  const sync = change(
    'soon',
    `UPDATE channels SET
       charged_atomic = CASE WHEN ${isRaised} THEN $claimed ELSE charged_atomic END,
       signed_atomic = CASE WHEN NOT ${isBelow('signed_atomic', '$claimed')} THEN signed_atomic END,
       signature = CASE WHEN NOT ${isBelow('signed_atomic', '$claimed')} THEN signature END,
       ${reservedColumns.map((name) => `${name} = CASE WHEN NOT (${isUseless}) THEN ${name} END`).join(', ')},
       balance_atomic = CASE WHEN ${isEmpty} AND NOT (${isOfRefund} OR ${isRaised})
         THEN reserved_atomic ELSE $balance END,
       claimed_atomic = $claimed, withdraw_at = $withdrawAt, refund_nonce = $refundNonce,
       synced_at = CASE WHEN $now > synced_at THEN $now ELSE synced_at + 1 END
     WHERE id = $id AND synced_at = $syncedAt RETURNING *`,
  )
  return {
    /** Stores a channel from the chain: charged is what was claimed. False when it is known. */
    async insert({ id, network, config }: Agreed, state: OnChain, now: number) {
      const { salt, ...terms } = config
      const own = { ...terms, network, id: id.toLowerCase(), salt: salt.toLowerCase() }
      return (await insert({ ...own, ...valuesOf(state, now) })).length > 0
    },
    /**
     * Stores what the chain has. Where more was claimed than charged, as after a restored backup,
     * charged is raised to it, and the reservation of a request ends. Of a channel that is shown as empty,
     * what a request has reserved counts: a node may be behind the deposit, and only of an open channel is
     * it released when the process is gone. A greater voucher has it read again.
     * `syncedAt`: of the channel before the chain was read. Undefined where that is another one now:
     * another process has stored what may be newer.
     */
    async sync({ id, syncedAt }: Pick<Channel, 'id' | 'syncedAt'>, state: OnChain, now: number) {
      const [row] = await sync({ id: id.toLowerCase(), syncedAt, ...valuesOf(state, now) })
      return row && toChannel(row)
    },
  }
}

function valuesOf(state: OnChain, now: number) {
  return {
    balance: String(state.balanceAtomic),
    claimed: String(state.claimedAtomic),
    withdrawAt: state.withdrawAt ?? null,
    refundNonce: String(state.refundNonce),
    now,
  }
}

/** What was charged before a payment of a channel, which is in its nonce. */
export function baseOf({ nonce }: { nonce: Hex }): bigint {
  return BigInt(`0x${nonce.slice(34)}`)
}
