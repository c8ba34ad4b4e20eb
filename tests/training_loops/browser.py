"""A headless browser for tests of pages."""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
import shutil
import signal
import tempfile

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service


@contextlib.contextmanager
def launch() -> Iterator[webdriver.Chrome]:
  """Chromium, which is gone afterwards; the test is skipped where it is missing."""
  chromium, driver = shutil.which('chromium'), shutil.which('chromedriver')
  if not (chromium and driver):
    missing = 'chromedriver' if chromium else 'chromium'
    pytest.skip(f'needs chromium and chromedriver: there is no {missing}')
  options = Options()
  options.binary_location = chromium
  options.set_capability('goog:loggingPrefs', {'browser': 'ALL', 'performance': 'ALL'})
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
    for flag in (
      '--headless=new',
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
      f'--user-data-dir={profile}',
    ):
      options.add_argument(flag)
    # In a session of its own, so that whatever it leaves behind can be ended by it.
    service = Service(driver, popen_kw={'start_new_session': True})
    try:
      with webdriver.Chrome(options, service) as browser:
        yield browser
    finally:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(service.process.pid, signal.SIGKILL)


def open_file(browser: webdriver.Chrome, path: pathlib.Path) -> None:
  """Opens a file by its URL. What the log says from now on is about it."""
  for kind in ('browser', 'performance'):
    browser.get_log(kind)
  browser.get(path.as_uri())


def requests(browser: webdriver.Chrome) -> list[str]:
  """The URLs that the open page has asked for, itself included."""
  messages = [
    json.loads(entry['message'])['message'] for entry in browser.get_log('performance')
  ]
  return [
    message['params']['request']['url']
    for message in messages
    if message['method'] == 'Network.requestWillBeSent'
    and message['params']['documentURL'] == browser.current_url
  ]


def resize(browser: webdriver.Chrome, width: int, height: int) -> None:
  """Sets the size of the viewport, also one that is narrower than any window."""
  browser.execute_cdp_cmd(
    'Emulation.setDeviceMetricsOverride',
    {'width': width, 'height': height, 'deviceScaleFactor': 1, 'mobile': False},
  )


def prefer(browser: webdriver.Chrome, scheme: str) -> None:
  """Makes the reader prefer a `light` or a `dark` scheme."""
  features = [{'name': 'prefers-color-scheme', 'value': scheme}]
  browser.execute_cdp_cmd('Emulation.setEmulatedMedia', {'features': features})
