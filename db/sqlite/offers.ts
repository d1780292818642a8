import type { MerchantRow, OfferLedger } from '../Ledger'
import { merchants, offers } from '../schema'
import { decoderOf } from '../select'
import type { Db } from './open'
import { insertInto, statement } from './statement'
import { write } from './write'

const decodeOffer = decoderOf(offers)

export function createOffers(db: Db): OfferLedger {
  const known = statement<MerchantRow>(db, 'SELECT slug, title, hash, json FROM merchants')
  const retired = statement(db, 'SELECT * FROM offers')
  const forget = statement(db, 'DELETE FROM offers WHERE retired_at < $keptFrom')
  const retire = insertInto(
    db,
    offers,
    `ON CONFLICT (merchant, route, network, asset, pay_to, amount_atomic)
     DO UPDATE SET retired_at = excluded.retired_at`,
  )
  const remove = statement(
    db,
    'DELETE FROM merchants WHERE slug NOT IN (SELECT value FROM json_each($slugs))',
  )
  // The hash does not cover values from other tables, such as the payout.
  const mirror = insertInto(
    db,
    merchants,
    `ON CONFLICT (slug) DO UPDATE
     SET title = excluded.title, hash = excluded.hash, json = excluded.json,
       updated_at = excluded.updated_at
     WHERE merchants.hash <> excluded.hash OR merchants.json <> excluded.json`,
  )
  return {
    merchants: async () => known().all(),
    retired: async () => retired().all().map(decodeOffer),
    async replace({ merchants: rows, ended, keptFrom, now }) {
      write(db, () => {
        forget().run({ keptFrom })
        for (const offer of ended) retire(offer)
        remove().run({ slugs: JSON.stringify(rows.map(({ slug }) => slug)) })
        for (const { slug, title, hash, json } of rows)
          mirror({ slug, title, hash, json, updatedAt: now })
      })
    },
    // No other process uses the file.
    onReplace: () => undefined,
  }
}
