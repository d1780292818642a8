import type { ChannelLedger } from '../../../db/Ledger'
import type { NetworkConfig } from '../../config/Config'
import { equal } from '../../protocol/Address'
import * as Amount from '../../protocol/Amount'
import * as Crypto from '../../protocol/Crypto'

/**
 * Why the service cannot have this key: a channel takes claims and refunds only from the authorizer of
 * its config. Undefined: it can.
 */
export async function findAuthorizerFault(
  { authorizers }: Pick<ChannelLedger, 'authorizers'>,
  key: Uint8Array | undefined,
): Promise<string | undefined> {
  const own = key && Crypto.addressOf(key)
  const others = (await authorizers()).filter(
    ({ authorizer }) => own === undefined || !equal(authorizer, own),
  )
  if (others.length === 0) return undefined
  const open = others.map(({ authorizer, channels }) => {
    return `${channels} open channel${channels === 1 ? '' : 's'} of ${authorizer}`
  })
  return (
    `RECEIVER_AUTHORIZER_KEY is ${own === undefined ? 'not set' : `that of ${own}`}, and the ledger has ` +
    `${open.join(' and ')}, which no other key can claim or refund: set that key again`
  )
}

/**
 * Why a configuration leaves money behind: nothing is claimed on a network without channels, and what is not
 * claimed goes back to its payers. Undefined: it leaves none.
 */
export async function findLeftFault(
  { totals }: Pick<ChannelLedger, 'totals'>,
  networks: readonly Pick<NetworkConfig, 'id' | 'channels'>[],
): Promise<string | undefined> {
  const left = (await totals()).find(({ network, unclaimedAtomic }) => {
    return unclaimedAtomic > 0n && !networks.some(({ id, channels }) => id === network && channels)
  })
  if (left === undefined) return undefined
  const amount = Amount.toDecimal(left.unclaimedAtomic, 6)
  return (
    `[networks."${left.network}".channels] is missing, and ${amount} USD that channels were charged there ` +
    'is not claimed: put it back, and claim all on /admin/channels before you remove it'
  )
}
