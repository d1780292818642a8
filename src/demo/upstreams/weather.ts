import {
  type Ask,
  count,
  dayMs,
  isoDate,
  list,
  number,
  type Reply,
  type Route,
  range,
  today,
  todayMs,
} from './reply'

const units: Readonly<Record<string, string>> = {
  temperature_2m: '°C',
  temperature_2m_max: '°C',
  temperature_2m_min: '°C',
  apparent_temperature: '°C',
  relative_humidity_2m: '%',
  precipitation: 'mm',
  precipitation_sum: 'mm',
  wind_speed_10m: 'km/h',
  weather_code: 'wmo code',
  european_aqi: 'EAQI',
  us_aqi: 'USAQI',
  pm10: 'μg/m³',
  pm2_5: 'μg/m³',
  ozone: 'μg/m³',
  nitrogen_dioxide: 'μg/m³',
  carbon_monoxide: 'μg/m³',
  sunrise: 'iso8601',
  sunset: 'iso8601',
}

function bad(reason: string): Reply {
  return { status: 400, body: { error: true, reason } }
}

/** One or more numbers with commas between them; undefined when one of them is invalid. */
function coordinates(url: URL, name: string, limit: number): readonly number[] | undefined {
  const values = (url.searchParams.get(name) ?? '')
    .split(',')
    .map((text) => Number(text.trim() || Number.NaN))
  return values.every((each) => Math.abs(each) <= limit) ? values : undefined
}

/** The value of a variable at a place and time. */
function value(place: string, name: string, time: string): number | string {
  if (name === 'sunrise') return `${time}T07:12`
  if (name === 'sunset') return `${time}T16:31`
  const unit = units[name]
  const [min, max] = unit === '°C' ? [-5, 30] : unit === 'wmo code' ? [0, 3] : [1, 90]
  return number(`${place}|${name}|${time}`, min ?? 0, max ?? 0, unit === 'wmo code' ? 0 : 1)
}

function series(ask: Ask, key: 'hourly' | 'daily', place: string, days: number) {
  const names = list(ask.url, key)
  if (names.length === 0) return {}
  const dates = range(days).map((day) => isoDate(todayMs + day * dayMs))
  const hours = range(24).map((hour) => `T${String(hour).padStart(2, '0')}:00`)
  const time = key === 'daily' ? dates : dates.flatMap((date) => hours.map((hour) => date + hour))
  const unitOf = names.map((name) => [name, units[name] ?? 'undefined'])
  return {
    [`${key}_units`]: { time: 'iso8601', ...Object.fromEntries(unitOf) },
    [key]: {
      time,
      ...Object.fromEntries(names.map((name) => [name, time.map((at) => value(place, name, at))])),
    },
  }
}

function weather(ask: Ask, interval: number): Reply {
  const latitudes = coordinates(ask.url, 'latitude', 90)
  const longitudes = coordinates(ask.url, 'longitude', 180)
  if (latitudes === undefined) return bad("Parameter 'latitude' must be a number from -90 to 90.")
  if (longitudes === undefined)
    return bad("Parameter 'longitude' must be a number from -180 to 180.")
  if (latitudes.length !== longitudes.length)
    return bad("Parameter 'latitude' and 'longitude' must have the same number of elements")
  const days = count(ask.url, 'forecast_days', 7, 1000)
  if (days > 16) return bad(`Forecast days is invalid. Allowed range 0 to 16. Given ${days}.`)
  const found = latitudes.map((latitude, index) => ({
    ...forecast(ask, { latitude, longitude: longitudes[index] ?? 0 }, { interval, days }),
    ...(index > 0 ? { location_id: index } : {}),
  }))
  // One place gives an object, several places a list.
  return { body: found.length === 1 ? found[0] : found }
}

function forecast(
  ask: Ask,
  { latitude, longitude }: { latitude: number; longitude: number },
  { interval, days }: { interval: number; days: number },
) {
  const place = `${latitude.toFixed(2)},${longitude.toFixed(2)}`
  const names = list(ask.url, 'current')
  const time = `${today}T12:00`
  const current = names.length > 0 && {
    current_units: {
      time: 'iso8601',
      interval: 'seconds',
      ...Object.fromEntries(names.map((name) => [name, units[name] ?? 'undefined'])),
    },
    current: {
      time,
      interval,
      ...Object.fromEntries(names.map((name) => [name, value(place, name, time)])),
    },
  }
  return {
    latitude,
    longitude,
    generationtime_ms: 0.11,
    utc_offset_seconds: 0,
    timezone: 'GMT',
    timezone_abbreviation: 'GMT',
    elevation: number(`${place}|elevation`, 0, 900),
    ...current,
    ...series(ask, 'hourly', place, days),
    ...series(ask, 'daily', place, days),
  }
}

const places: readonly (readonly [string, number, number, string, string, string, number])[] = [
  ['Berlin', 52.52437, 13.41053, 'DE', 'Germany', 'Europe/Berlin', 3426354],
  ['London', 51.50853, -0.12574, 'GB', 'United Kingdom', 'Europe/London', 8961989],
  ['Paris', 48.85341, 2.3488, 'FR', 'France', 'Europe/Paris', 2138551],
  ['Paris', 33.66094, -95.55551, 'US', 'United States', 'America/Chicago', 24782],
  ['Tokyo', 35.6895, 139.69171, 'JP', 'Japan', 'Asia/Tokyo', 9733276],
  ['New York', 40.71427, -74.00597, 'US', 'United States', 'America/New_York', 8804190],
  ['San Francisco', 37.77493, -122.41942, 'US', 'United States', 'America/Los_Angeles', 864816],
  ['Zürich', 47.36667, 8.55, 'CH', 'Switzerland', 'Europe/Zurich', 341730],
  ['Nairobi', -1.28333, 36.81667, 'KE', 'Kenya', 'Africa/Nairobi', 2750547],
  ['São Paulo', -23.5475, -46.63611, 'BR', 'Brazil', 'America/Sao_Paulo', 12400232],
]

function fold(text: string): string {
  return text.normalize('NFD').replace(/\p{M}/gu, '').toLowerCase()
}

function geocode({ url }: Ask): Reply {
  const name = url.searchParams.get('name')
  if (name === null) return bad("Parameter 'name' is required.")
  const results = places
    .filter(([place]) => name.length > 1 && fold(place).startsWith(fold(name)))
    .slice(0, count(url, 'count', 10, 100))
    .map(([place, latitude, longitude, code, country, timezone, population]) => ({
      id: number(`${place}|${code}`, 1_000_000, 9_999_999),
      name: place,
      latitude,
      longitude,
      elevation: number(place, 2, 900),
      feature_code: population > 1_000_000 ? 'PPLC' : 'PPL',
      country_code: code,
      timezone,
      population,
      country_id: number(country, 1_000_000, 9_999_999),
      country,
    }))
  return { body: { ...(results.length > 0 ? { results } : {}), generationtime_ms: 0.44 } }
}

/** Open-Meteo: api, air-quality-api and geocoding-api. */
export const routes: readonly Route[] = [
  { path: /^\/v1\/forecast$/, answer: (ask) => weather(ask, 900) },
  { path: /^\/v1\/air-quality$/, answer: (ask) => weather(ask, 3600) },
  { path: /^\/v1\/search$/, answer: geocode },
]
