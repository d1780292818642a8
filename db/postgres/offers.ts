import type { MerchantRow, OfferLedger } from '../Ledger'
import { merchants, offers } from '../schema'
import { decoderOf, rowsOf } from '../select'
import type { Parts } from './parts'
import { selectsOf } from './reader'
import { toJson } from './rows'

/** Retired offers, and the mirror of the configuration. */
export function createOffers(
  { commits, reader, gateway }: Pick<Parts, 'commits' | 'reader' | 'gateway'>,
  onReplace: OfferLedger['onReplace'],
): OfferLedger {
  return {
    merchants: () => reader.all<MerchantRow>('SELECT slug, title, hash, json FROM merchants'),
    retired: rowsOf(selectsOf(reader), offers, decoderOf(offers)).all(''),
    replace: ({ merchants: rows, ended, keptFrom, now }) =>
      commits.add({
        call: 'replace_offers',
        input: {
          merchants: rows.map(({ slug, title, hash, json }) =>
            toJson(merchants, { slug, title, hash, json, updatedAt: now }),
          ),
          ended: ended.map((each) => toJson(offers, each)),
          keptFrom,
          by: gateway,
        },
        key: 'offers',
      }),
    onReplace,
  }
}
