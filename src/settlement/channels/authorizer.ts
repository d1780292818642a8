import type { ChannelLedger } from '../../../db/Ledger'
import { equal } from '../../protocol/Address'
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
