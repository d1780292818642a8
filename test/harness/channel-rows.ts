import type { Hex } from 'viem'
import type { OnChain, Reserved, Channel as Stored } from '../../db/Channel'
import type { ChannelLedger } from '../../db/Ledger'
import type { PaymentRow } from '../../db/schema'
import { account } from '../../src/demo/accounts'
import * as Channel from '../../src/protocol/Channel'
import type * as Network from '../../src/protocol/Network'
import { asset, at, hashOf, next, paymentRow } from './settling-rows'

/** A channel that no other test has, of account 2 with account 7. */
export function channelOf(network: Network.Id, changes: Partial<Channel.Config> = {}) {
  const config: Channel.Config = {
    ...{ payer: account(2).address, payerAuthorizer: account(2).address },
    ...{ receiver: account(7).address, receiverAuthorizer: account(8).address },
    ...{ token: asset, withdrawDelay: 86_400, salt: hashOf(next()), ...changes },
  }
  return { id: Channel.idOf(config, Number(network.slice('eip155:'.length))), network, config }
}

export type TestChannel = ReturnType<typeof channelOf>

export function onChain(changes: Partial<OnChain> = {}): OnChain {
  return {
    ...{ balanceAtomic: 1_000n, claimedAtomic: 0n, withdrawAt: undefined, refundNonce: 0n },
    ...changes,
  }
}

export function reservedOf(maxAtomic: bigint, changes: Partial<Reserved> = {}): Reserved {
  return {
    id: `pay_${next().toString(16).padStart(32, '0')}`,
    maxAtomic,
    signature: signatureOf(maxAtomic),
    fingerprint: 'f'.repeat(64),
    at: at + 5,
    ...changes,
  }
}

export function signatureOf(maxAtomic: bigint): Hex {
  return `0x${maxAtomic.toString(16).padStart(130, 'c')}`
}

/** The payment of a reservation that is charged this amount above `baseAtomic`. */
export function chargeRow(
  { id, network, config }: TestChannel,
  reservationId: string,
  { baseAtomic, amountAtomic }: { baseAtomic: bigint; amountAtomic: bigint },
  changes: Partial<PaymentRow> = {},
): PaymentRow {
  return paymentRow(
    { network, hash: id },
    {
      ...{ id: reservationId, method: 'channel', amountAtomic },
      ...{ payer: config.payer, payee: config.receiver, asset: config.token },
      nonce: Channel.nonceOf(id, baseAtomic),
      ...{ validBefore: 2n ** 256n - 1n, state: 'confirmed', confirmedAt: at + 6 },
      ...{ delivery: 'delivering', attempts: 1, ...changes },
    },
  )
}

/** Reserves a voucher of `baseAtomic` and the amount, and charges all of it. */
export async function pay(
  channels: ChannelLedger,
  channel: TestChannel,
  amounts: { baseAtomic: bigint; amountAtomic: bigint },
  changes: Partial<PaymentRow> = {},
) {
  const { baseAtomic, amountAtomic } = amounts
  const { signature = signatureOf(baseAtomic + amountAtomic) } = changes
  const reserved = reservedOf(baseAtomic + amountAtomic, { signature })
  const answer = await channels.reserve({ channelId: channel.id, baseAtomic, reserved })
  if (answer !== 'reserved') return undefined
  return channels.charge({ row: chargeRow(channel, reserved.id, amounts, changes) })
}

/** Stores what the chain has of a channel, as it is read now. */
export async function sync(
  channels: ChannelLedger,
  { id }: { id: Hex },
  state: OnChain,
  now: number,
): Promise<Stored | undefined> {
  const before = await channels.find(id)
  return before && channels.sync(before, state, now)
}
