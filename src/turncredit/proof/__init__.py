"""Did it help, and is it what we say it is?"""
