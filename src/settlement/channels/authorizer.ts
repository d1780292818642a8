import type { ChannelLedger } from '../../../db/Ledger'
import type { NetworkConfig } from '../../config/Config'
import { equal } from '../../protocol/Address'
import * as Amount from '../../protocol/Amount'
import * as Crypto from '../../protocol/Crypto'

/**
 * Why a start would strand money of channels. They take claims and refunds only from the authorizer of their
 * config. Without `channels` in its configuration a network claims nothing, and payers withdraw the rest.
 * `networks`: undefined where they are not known.
 */
export async function findChannelsFault(
  { authorizers, totals }: Pick<ChannelLedger, 'authorizers' | 'totals'>,
  key: Uint8Array | undefined,
  networks: readonly Pick<NetworkConfig, 'id' | 'channels'>[] | undefined,
): Promise<string | undefined> {
  const own = key && Crypto.addressOf(key)
  const others = (await authorizers()).filter(
    ({ authorizer }) => own === undefined || !equal(authorizer, own),
  )
  if (others.length > 0) {
    const open = others.map(({ authorizer, channels }) => {
      return `${channels} open channel${channels === 1 ? '' : 's'} of ${authorizer}`
    })
    return (
      `RECEIVER_AUTHORIZER_KEY is ${own === undefined ? 'not set' : `that of ${own}`}, and the ledger has ` +
      `${open.join(' and ')}, which no other key can claim or refund: set that key again`
    )
  }
  const left = (await totals()).find(({ network, unclaimedAtomic }) => {
    const isLeft = networks?.every(({ id, channels }) => id !== network || !channels)
    return isLeft && unclaimedAtomic > 0n
  })
  if (left === undefined) return undefined
  const amount = Amount.toDecimal(left.unclaimedAtomic, 6)
  return (
    `[networks."${left.network}".channels] is missing, and ${amount} USD that channels were charged there ` +
    'is not claimed: put it back, and claim all on /admin/channels before you remove it'
  )
}
