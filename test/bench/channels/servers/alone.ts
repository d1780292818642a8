// Vouchers without HTTP: their signature, reservation and charge in one process, over SQLite with its syncs.
// Prints a line of JSON for each round: vouchers a second, and recoveries of a signature a second.
// Arguments: rounds, channels, vouchers of each channel in a round.

import { account } from '../../../../src/demo/accounts'
import * as Voucher from '../../../../src/protocol/Channel'
import * as Crypto from '../../../../src/protocol/Crypto'
import type { Presented } from '../../../../src/settlement/channels/state'
import { ownChannels } from '../../../harness/own-channels'
import { mint } from '../../paid/payers'

/** Accounts of the chain with money: the deposits of each in an hour are limited. */
const payers = [1, 2, 3, 4, 5, 6, 8]
const [rounds = 1, channels = 64, each = 40] = process.argv.slice(2).map(Number)
const priceAtomic = 100n
const fresh = { terms: { claimAboveAtomic: 10n ** 12n, unclaimedMaxAtomic: 10n ** 12n } }

await using own = await ownChannels(fresh)
const { chainId } = own.network
await mint(
  own.net.chain,
  own.network,
  payers.map((index) => account(index)),
)
const configs = await Promise.all(
  Array.from({ length: channels }, (_, index) =>
    own.opened(5_000_000n, priceAtomic, payers[index % payers.length]),
  ),
)
let base = priceAtomic

for (let round = 0; round < rounds; round++) {
  const lists = configs.map((config) =>
    Array.from({ length: each }, (_, index) =>
      own.voucher(config, base + priceAtomic * BigInt(index + 1), priceAtomic),
    ),
  )
  base += priceAtomic * BigInt(each)
  const all = lists.flat()
  const bound = await perSecond(all.length, async () => {
    for (const transfer of all) assertSigned(transfer)
  })
  const vouchers = await perSecond(all.length, async () => {
    await Promise.all(
      lists.map(async (list) => {
        for (const transfer of list) {
          assertSigned(transfer)
          const { kind } = await own.pay(transfer)
          if (kind !== 'authorized') throw new Error(`a voucher was not taken: ${kind}`)
        }
      }),
    )
  })
  process.stdout.write(`${JSON.stringify({ vouchers, bound })}\n`)
}

function assertSigned({ voucher: { channelId, config, maxAtomic }, signature }: Presented): void {
  const digest = Voucher.voucherDigest(chainId, channelId, maxAtomic)
  if (Crypto.recover(digest, signature) !== config.payerAuthorizer)
    throw new Error('another key signed the voucher')
}

/** `cpuUs`: processor time of each, which other programs disturb less. */
async function perSecond(count: number, run: () => Promise<void>) {
  const before = process.cpuUsage()
  const startedAt = performance.now()
  await run()
  const elapsedMs = performance.now() - startedAt
  const { user, system } = process.cpuUsage(before)
  return { perSecond: (count * 1000) / elapsedMs, cpuUs: (user + system) / count }
}
